"""How long a cell of code takes, beside a bare Jupyter kernel on the host."""
