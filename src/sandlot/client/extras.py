"""Parts that are not installed with the SDK: found, or a word on how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType

from sandlot.domain.errors import Unsupported


def module_of_extra(name: str, *, extra: str, who: str) -> ModuleType:
    """By name, since what is asked for may stand above who asks. ``who`` needs it, for the message."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "sandlot":
            raise
        raise Unsupported(
            f"{who} needs {error.name}, which is not installed. In the folder of your clone of Sandlot, run: "
            f"pip install '.[{extra}]'"
        ) from error
