"""Runs of LangChain's agents, here and in other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from tests.integrations.scripted import calls

ROOT = Path(__file__).parents[2]


def config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def ask(text: str = "go on") -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def bash(command: str, **arguments: Any) -> AIMessage:
    return calls(("bash", {"command": command, **arguments}))


def another_process(function: str, *arguments: str, module: str) -> subprocess.Popen[str]:
    """Does one run there, and prints its last word."""
    code = f"import sys; from {module} import *; print({function}(*sys.argv[1:])['messages'][-1].text)"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def in_another_process(function: str, *arguments: str, module: str) -> str:
    with another_process(function, *arguments, module=module) as process:
        out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return out.strip()
