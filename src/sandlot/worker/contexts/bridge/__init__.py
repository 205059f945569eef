"""The bridge: a program inside the sandbox, between cells and Jupyter kernels.

The worker sends these modules as text to the sandbox's own Python, which has ``jupyter_client``. So nothing
here may import other parts of the project. ``program.py``, a floor above, starts it.
"""
