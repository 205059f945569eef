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

# Everything that repeats has a bound, so that no text makes the search slow.
# The beginning of a program's name: not the middle of a word, but the end of a path.
_NAME: Final = r"(?<![\w.-])"
# More of the same command.
_MORE: Final = r"[^;&|\n]{0,200}"
_GAP: Final = r"\s{1,20}"
_PATH: Final = r"(?:[^\s;&|]{0,100}/)?"
_PROGRAM: Final = (
    rf"\s{{0,20}}(?:sudo{_GAP})?{_PATH}(?:env{_GAP})?"
    r"(?:\w{0,4}sh|python[\d.]{0,10}|perl|ruby|node)\b"
)
_DOWNLOADS: Final = r"(?:<\(|\$\(|`)\s{0,20}(?:curl|wget)\b"
_DECODES: Final = rf"base64{_GAP}(?:-d|-D|--decode)\b"

# Regular expressions, each with what a person is told about a command in which it is found.
DEFAULT_PATTERNS: Final[Mapping[str, str]] = {
    rf"{_NAME}rm\b{_MORE}\s-(?:\w{{0,50}}[rR]|-recursive\b)": "deletes folders with all that is in them",
    rf"{_NAME}find\b{_MORE}\s-delete\b": "deletes all that it finds",
    rf"{_NAME}find\b{_MORE}\s-exec(?:dir)?{_GAP}{_PATH}rm\b": "deletes all that it finds",
    rf"{_NAME}xargs(?:{_GAP}(?:-\w{{1,20}}|\d{{1,9}})){{0,6}}{_GAP}{_PATH}rm\b": "deletes what it is given",
    r"\brmtree\s{0,20}\(": "deletes a folder with all that is in it",
    rf"{_NAME}git\b{_MORE}\spush\b": "publishes commits",
    # Each to the first such word and on from there, not from every one of them.
    rf"{_NAME}git\b(?>{_MORE}?\sreset\s){_MORE}--hard": "throws changes away",
    rf"{_NAME}git\b(?>{_MORE}?\sclean\s){_MORE}-\w{{0,50}}f": "throws changes away",
    rf"{_NAME}(?:curl|wget)\b[^;&\n]{{0,200}}\|{_PROGRAM}": "runs what it downloads",
    rf"\b(?:\w{{0,4}}sh|eval|source)\s{_MORE}{_DOWNLOADS}": "runs what it downloads",
    rf"{_NAME}{_DECODES}[^;&\n]{{0,200}}\|{_PROGRAM}": "runs what it decodes",
    rf"{_NAME}(?:npm|pnpm|yarn|cargo|poetry|uv)\b{_MORE}\spublish\b": "publishes a package",
    rf"{_NAME}twine{_GAP}upload\b": "publishes a package",
    rf"{_NAME}(?:mkfs(?:\.\w{{1,20}})?|shred|wipefs)\s": "destroys data",
    rf"{_NAME}dd\s{_MORE}\bof=/dev/": "writes over a device",
    rf"{_NAME}(?:chmod|chown)\b{_MORE}\s-(?:\w{{0,50}}R|-recursive\b)": "changes whole folders' permissions",
    rf"{_NAME}(?:sudo|doas)\s": "asks for the rights of another user",
    r":\s{0,20}\(\s{0,20}\)\s{0,20}\{": "starts processes without end",
    rf"(?i)\b(?:drop{_GAP}(?:table|database|schema)|truncate{_GAP}table)\b": "deletes data of a database",
}
# Of one command; a person is asked about a longer one.
LOOKED_THROUGH: Final = 20_000  # characters
SHOWN: Final = 10_000  # of them, to that person


class ApprovalPolicy:
    """``patterns``: regular expressions, each with why a command that has it needs consent.

    ``{**DEFAULT_PATTERNS, r"\\bterraform apply\\b": "changes servers"}`` adds one; ``{"": "runs a command"}``
    asks about every command. A command that is too long to be looked through is asked about.
    """

    def __init__(self, patterns: Mapping[str, str] = DEFAULT_PATTERNS) -> None:
        self._patterns = [(re.compile(pattern), why) for pattern, why in patterns.items()]
        self._last = ("", self._found_in(""))  # a command is asked about, and then described

    def why(self, command: str) -> str | None:
        """Why a person is to be asked; None if nobody needs to be."""
        last, why = self._last
        if command != last:
            why = self._found_in(command)
            self._last = (command, why)
        return why

    def _found_in(self, command: str) -> str | None:
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
    """As the shell will see the words: ``r\\m``, ``'rm'``, wide gaps and a second line are no disguise."""
    plain = re.sub(r"[\\'\"]", "", command.replace("\\\n", " "))
    return re.sub(r"[^\S\n]+", " ", plain)
