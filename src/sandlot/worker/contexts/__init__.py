"""Code contexts: Jupyter kernels inside a sandbox, the program there that runs them, and cells as execs."""
