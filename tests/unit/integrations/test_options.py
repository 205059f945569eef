"""U1: what is misspelled in the options of an agent's sandbox is an error where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.integrations.deepagents import SandlotBackend
from sandlot.integrations.langchain import SandboxMiddleware, bash_node, sandbox_tools
from sandlot.integrations.sandboxes import Sandboxes


@pytest.mark.parametrize(
    ("made", "given", "meant"),
    [
        (SandboxMiddleware, "enviroment", "environment"),
        (SandboxMiddleware, "clean_up", "cleanup"),
        (sandbox_tools, "lifetime", "lifetime_s"),
        (bash_node, "comand_key", "command_key"),
        (SandlotBackend, "Shell", "shell"),
        (Sandboxes, "enviroment", "environment"),
    ],
)
def test_u1_an_unknown_option_is_an_error(made: Any, given: str, meant: str) -> None:
    expected = rf"{made.__name__}\(\) got an unexpected keyword argument '{given}'. Did you mean '{meant}'"
    with pytest.raises(TypeError, match=expected):
        made(**{given: "x"})


def test_u1_a_timeout_of_a_sandbox_says_which_there_are() -> None:
    with pytest.raises(TypeError, match="idle_timeout_s and lifetime_s"):
        SandboxMiddleware(timeout=60)  # type: ignore[call-arg]
