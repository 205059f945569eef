"""Adapters for agent frameworks: each stands on the SDK alone, behind an extra of its own.

``sandboxes`` finds the sandbox of a thread from any kind of code, ``toolbox`` is what a model can do in it,
and ``model_text`` how it is told what came of it. ``foreground`` and ``os_files`` are for frameworks in which
a command ends with its caller and a file's trouble is an ``OSError``. The rest says these things in the words
of one framework each.
"""
