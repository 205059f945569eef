"""``ApprovalPolicy``: commands that a person is asked about before they run.

A seat belt, not a wall. A command is looked at as text, and there are endless ways to write one that does the
same and looks different: a script, a variable, another language. What a model must not be able to do at all
is kept from it by the sandbox: no network, no credentials inside, limits. This is for what it may do, with
somebody's consent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from langchain.agents.middleware import HumanInTheLoopMiddleware, InterruptOnConfig, ToolCallRequest

from sandlot.integrations.model_text import shortened

# The beginning of a program's name: not the middle of a word, but the end of a path.
_NAME: Final = r"(?<![\w.-])"
# More of the same command. Bounded, so that no text makes the search slow.
_MORE: Final = r"[^;&|\n]{0,200}"
_PATH: Final = r"(?:\S{0,100}/)?"
_PROGRAM: Final = rf"(?:sudo\s+)?{_PATH}(?:env\s+)?(?:\w{{0,4}}sh|python[\d.]*|perl|ruby|node)\b"

# Regular expressions, each with what a person is told about a command in which it is found.
DEFAULT_PATTERNS: Final[Mapping[str, str]] = {
    rf"{_NAME}rm\b{_MORE}\s-(?:\w*[rR]\w*|-recursive)\b": "deletes folders with all that is in them",
    rf"{_NAME}find\b{_MORE}\s-delete\b": "deletes all that it finds",
    rf"{_NAME}find\b{_MORE}\s-exec(?:dir)?\s+{_PATH}rm\b": "deletes all that it finds",
    rf"{_NAME}xargs(?:\s+(?:-\w{{1,20}}|\d{{1,9}})){{0,6}}\s+{_PATH}rm\b": "deletes what it is given",
    r"\brmtree\s*\(": "deletes a folder with all that is in it",
    rf"{_NAME}git\b{_MORE}\spush\b": "publishes commits",
    rf"{_NAME}git\b{_MORE}\s(?:reset\s{_MORE}--hard|clean\s{_MORE}-\w*f)": "throws changes away",
    rf"{_NAME}(?:curl|wget)\b[^;&\n]{{0,200}}\|\s*{_PROGRAM}": "runs what it downloads",
    rf"\b(?:\w{{0,4}}sh|eval|source)\s{_MORE}(?:<\(|\$\(|`)\s*(?:curl|wget)\b": "runs what it downloads",
    rf"{_NAME}base64\s+(?:-d|-D|--decode)\b[^;&\n]{{0,200}}\|\s*{_PROGRAM}": "runs what it decodes",
    rf"{_NAME}(?:npm|pnpm|yarn|cargo|poetry|uv)\b{_MORE}\spublish\b": "publishes a package",
    rf"{_NAME}twine\s+upload\b": "publishes a package",
    rf"{_NAME}(?:mkfs(?:\.\w+)?|shred|wipefs)\s": "destroys data",
    rf"{_NAME}dd\s{_MORE}\bof=/dev/": "writes over a device",
    rf"{_NAME}(?:chmod|chown)\b{_MORE}\s-(?:\w*R\w*|-recursive)\b": "changes permissions of whole folders",
    rf"{_NAME}(?:sudo|doas)\s": "asks for the rights of another user",
    r":\s*\(\s*\)\s*\{": "starts processes without end",
    r"(?i)\b(?:drop\s+(?:table|database|schema)|truncate\s+table)\b": "deletes data of a database",
}
# Of one command; a person is asked about a longer one.
LOOKED_THROUGH: Final = 100_000  # characters
SHOWN: Final = 10_000  # of them, to that person


class ApprovalPolicy:
    """``patterns``: regular expressions, each with why a command that has it needs consent.

    ``{**DEFAULT_PATTERNS, r"\\bterraform apply\\b": "changes servers"}`` adds one; ``{"": "runs a command"}``
    asks about every command. A command that is too long to be looked through is asked about.
    """

    def __init__(self, patterns: Mapping[str, str] = DEFAULT_PATTERNS) -> None:
        self._patterns = [(re.compile(pattern), why) for pattern, why in patterns.items()]

    def why(self, command: str) -> str | None:
        """Why a person is to be asked; None if nobody needs to be."""
        if self._patterns and len(command) > LOOKED_THROUGH:
            return f"has {len(command)} characters, too many to be looked through"
        forms = (command, _without_quoting(command))
        found = [why for pattern, why in self._patterns if any(pattern.search(form) for form in forms)]
        return "; ".join(dict.fromkeys(found)) or None

    def interrupt_on(self, tool: str = "bash") -> dict[str, bool | InterruptOnConfig]:
        """For a ``HumanInTheLoopMiddleware`` that asks about other tools as well."""
        return {
            tool: InterruptOnConfig(
                allowed_decisions=["approve", "edit", "reject"],
                description=lambda call, state, runtime: self._description(call["args"]),
                when=self._is_asked,
            )
        }

    def middleware(self, tool: str = "bash") -> HumanInTheLoopMiddleware[Any, Any, Any]:
        """LangChain's own, which asks about each such call as it begins.

        ``middleware().wrap_tool_call`` and ``awrap_tool_call`` serve a ``ToolNode`` of a hand-built graph.
        """
        return HumanInTheLoopMiddleware(self.interrupt_on(tool), interrupt_mode="per_call")

    def _is_asked(self, request: ToolCallRequest) -> bool:
        return self.why(str(request.tool_call["args"].get("command") or "")) is not None

    def _description(self, arguments: Mapping[str, Any]) -> str:
        command = str(arguments.get("command") or "")
        return f"The command {self.why(command)}:\n\n{shortened(command, SHOWN)}"


def _without_quoting(command: str) -> str:
    """As the shell will see the words: ``r\\m``, ``'rm'`` and a command over two lines are no disguise."""
    return re.sub(r"[\\'\"]", "", command.replace("\\\n", " "))
