"""Imports optional parts of Sandlot, with an error that says how to install a missing one."""

from __future__ import annotations

import importlib
from types import ModuleType

from sandlot.domain.errors import Unsupported


def import_extra(name: str, *, extra: str, needed_by: str) -> ModuleType:
    """Import a module that needs an optional extra.

    The import is by name, because the module may be on a higher floor than the caller.
    ``needed_by`` appears in the error message.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "sandlot":
            raise
        raise Unsupported(
            f"{needed_by[:1].upper()}{needed_by[1:]} needs {error.name}, which is not installed. "
            f"In the folder of your clone of Sandlot, run: pip install '.[{extra}]'"
        ) from error
