"""Adapters for agent frameworks. Each uses only the SDK and has its own optional dependency.

``sandboxes`` finds a thread's sandbox from any kind of code. ``toolbox`` holds the operations that
a model can perform in it, and ``model_text`` formats their results for the model. ``foreground``
and ``os_files`` serve frameworks in which a cancelled call ends its command and a file failure is
an ``OSError``. Every other module adapts these to one framework.
"""
