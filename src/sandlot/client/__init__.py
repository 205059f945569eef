"""The SDK: sessions for Python programs, over HTTP or in the same process, with and without await."""
