"""For every Python kernel in a sandbox."""

c = get_config()  # noqa: F821 (IPython reads this file)
c.InteractiveShellApp.extensions = ["sandlot_forms"]
