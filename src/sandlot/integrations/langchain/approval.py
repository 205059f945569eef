"""``ApprovalPolicy``: decides which commands need a person's approval before they run.

This is not a security boundary. It checks commands as text, and there are endless ways to write the
same command differently: a script, a variable, another language. The sandbox itself prevents what a
model must never do: it has no network, no credentials and hard limits. This policy is for actions
that a model may take with a person's consent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from langchain.agents.middleware import HumanInTheLoopMiddleware, InterruptOnConfig, ToolCallRequest

from sandlot.integrations.model_text import shorten

# Every repetition is bounded, so that no text makes the search slow.
# The start of a program's name: not inside a word, but possibly at the end of a path.
_NAME: Final = r"(?<![\w.-])"
# The rest of the same command.
_MORE: Final = r"[^;&|\n]{0,200}"
_GAP: Final = r"\s{1,20}"
_PATH: Final = r"(?:[^\s;&|]{0,100}/)?"
_PROGRAM: Final = (
    rf"\s{{0,20}}(?:sudo{_GAP})?{_PATH}(?:env{_GAP})?"
    r"(?:\w{0,4}sh|python[\d.]{0,10}|perl|ruby|node)\b"
)
_DOWNLOADS: Final = r"(?:<\(|\$\(|`)\s{0,20}(?:curl|wget)\b"
_DECODES: Final = rf"base64{_GAP}(?:-d|-D|--decode)\b"

# Regular expressions, each with the reason that a person sees when a command matches.
DEFAULT_PATTERNS: Final[Mapping[str, str]] = {
    rf"{_NAME}rm\b{_MORE}\s-(?:\w{{0,50}}[rR]|-recursive\b)": "deletes folders and their contents",
    rf"{_NAME}find\b{_MORE}\s-delete\b": "deletes everything that it finds",
    rf"{_NAME}find\b{_MORE}\s-exec(?:dir)?{_GAP}{_PATH}rm\b": "deletes everything that it finds",
    rf"{_NAME}xargs(?:{_GAP}(?:-\w{{1,20}}|\d{{1,9}})){{0,6}}{_GAP}{_PATH}rm\b": "deletes files",
    r"\brmtree\s{0,20}\(": "deletes a folder and its contents",
    rf"{_NAME}git\b{_MORE}\spush\b": "publishes commits",
    # Atomic groups: each search continues only from the first such word, not from all of them.
    rf"{_NAME}git\b(?>{_MORE}?\sreset\s){_MORE}--hard": "discards changes",
    rf"{_NAME}git\b(?>{_MORE}?\sclean\s){_MORE}-\w{{0,50}}f": "discards changes",
    rf"{_NAME}(?:curl|wget)\b[^;&\n]{{0,200}}\|{_PROGRAM}": "runs downloaded code",
    rf"\b(?:\w{{0,4}}sh|eval|source)\s{_MORE}{_DOWNLOADS}": "runs downloaded code",
    rf"{_NAME}{_DECODES}[^;&\n]{{0,200}}\|{_PROGRAM}": "runs decoded data",
    rf"{_NAME}(?:npm|pnpm|yarn|cargo|poetry|uv)\b{_MORE}\spublish\b": "publishes a package",
    rf"{_NAME}twine{_GAP}upload\b": "publishes a package",
    rf"{_NAME}(?:mkfs(?:\.\w{{1,20}})?|shred|wipefs)\s": "destroys data",
    rf"{_NAME}dd\s{_MORE}\bof=/dev/": "overwrites a device",
    rf"{_NAME}(?:chmod|chown)\b{_MORE}\s-(?:\w{{0,50}}R|-recursive\b)": "changes permissions recursively",
    rf"{_NAME}(?:sudo|doas)\s": "runs as another user",
    r":\s{0,20}\(\s{0,20}\)\s{0,20}\{": "starts processes without end",
    rf"(?i)\b(?:drop{_GAP}(?:table|database|schema)|truncate{_GAP}table)\b": "deletes data in a database",
}
# A longer command always needs approval.
MAX_SCANNED_CHARACTERS: Final = 20_000
MAX_SHOWN_CHARACTERS: Final = 10_000  # of a command, in the question to the person


class ApprovalPolicy:
    """Asks a person about dangerous commands.

    ``patterns``: regular expressions, each with the reason why a matching command needs approval.
    ``{**DEFAULT_PATTERNS, r"\\bterraform apply\\b": "changes servers"}`` adds a pattern.
    ``{"": "runs a command"}`` asks about every command. A command that is too long to be checked
    always needs approval.
    """

    def __init__(self, patterns: Mapping[str, str] = DEFAULT_PATTERNS) -> None:
        self._patterns = [(re.compile(pattern), why) for pattern, why in patterns.items()]
        # Each command is checked and then described, so the last result is cached.
        self._last = ("", self._find_reasons(""))

    def why(self, command: str) -> str | None:
        """Why the command needs approval; None if it needs none."""
        last, why = self._last
        if command != last:
            why = self._find_reasons(command)
            self._last = (command, why)
        return why

    def _find_reasons(self, command: str) -> str | None:
        if self._patterns and len(command) > MAX_SCANNED_CHARACTERS:
            return f"is too long to check ({len(command)} characters)"
        forms = (command, _without_quoting(command))
        found = [why for pattern, why in self._patterns if any(pattern.search(form) for form in forms)]
        return "; ".join(dict.fromkeys(found)) or None

    def interrupt_on(self, tool: str = "bash") -> dict[str, bool | InterruptOnConfig]:
        """The configuration for a ``HumanInTheLoopMiddleware`` that also asks about other tools."""
        return {
            tool: InterruptOnConfig(
                allowed_decisions=["approve", "edit", "reject"],
                description=lambda call, state, runtime: self._description(call["args"]),
                when=self._needs_approval,
            )
        }

    def middleware(self, tool: str = "bash") -> HumanInTheLoopMiddleware[Any, Any, Any]:
        """LangChain's own middleware, which asks about each matching call as it starts.

        In a hand-built graph, pass ``middleware().wrap_tool_call`` and ``awrap_tool_call`` to a
        ``ToolNode``.
        """
        return HumanInTheLoopMiddleware(self.interrupt_on(tool), interrupt_mode="per_call")

    def _needs_approval(self, request: ToolCallRequest) -> bool:
        return self.why(str(request.tool_call["args"].get("command") or "")) is not None

    def _description(self, arguments: Mapping[str, Any]) -> str:
        command = str(arguments.get("command") or "")
        return f"The command {self.why(command)}:\n\n{shorten(command, MAX_SHOWN_CHARACTERS)}"


def _without_quoting(command: str) -> str:
    """The command without disguises such as ``r\\m``, ``'rm'``, wide gaps and split lines."""
    unquoted = re.sub(r"[\\'\"]", "", command.replace("\\\n", " "))
    return re.sub(r"[^\S\n]+", " ", unquoted)
