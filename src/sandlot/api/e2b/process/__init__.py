"""The Connect service ``process.Process``: processes and terminals."""
