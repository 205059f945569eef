"""What a model is told: a command's result, or why there is none, in words that it can act on."""

from __future__ import annotations

import re
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict
from sandlot.domain.session import EndReason

DEFAULT_CHARACTERS: Final = 30_000
# Escape sequences steer terminals; to a model they are noise. The last alternative: one that was cut off.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-~]|\[[0-?]*$|$)"
)
# What would overwrite, ring or erase; tab and newline are text.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_WHY: Final = {
    Verdict.TIMEOUT: "ended after {seconds:.0f} s because its time was over, and all that it had started "
    "with it. Give it more time, or start it in the background",
    Verdict.OOM: "ended because it needed more memory than the sandbox has",
    Verdict.DISK_FULL: "failed because the disk is full",
    Verdict.KILLED: "killed on request",
    Verdict.OUTPUT_LIMIT: "ended because it printed more than is allowed",
}


def for_model(result: Result, *, limit: int = DEFAULT_CHARACTERS, path: str | None = None) -> str:
    """Output in the order in which it came, shortened in the middle; then how it ended, unless it ended well.

    ``path``: where the whole output can be read.
    """
    text = plain(result.output)
    if result.truncated:
        text += f"\n[the command wrote {result.output_bytes} bytes; what follows here was not kept]"
        path = path and f"{path}, as far as it was kept"
    parts = [shortened(text, limit, path).rstrip("\n")] if text.strip() else ["(no output)"]
    if (why := why_ended(result)) is not None:
        parts.append(f"[{why}; exit code {result.exit_code}]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}{_hint(result)}]")
    if (note := shell_note(result)) is not None:
        parts.append(f"[{note}]")
    return "\n".join(parts)


def why_ended(result: Result) -> str | None:
    """Of a command that was not left to end by itself."""
    why = _WHY.get(result.verdict)
    return None if why is None else why.format(seconds=result.duration_ms / 1000)


def shell_note(result: Result) -> str | None:
    """What became of the shell, where it is not as it was."""
    if result.raw.exited.shell_ended:
        return "the shell has ended, and its variables with it; the next command starts a new one"
    if result.raw.exited.shell_restarted:
        return "the shell had died since the last command; this one began in a new shell"
    return None


def plain(text: str) -> str:
    """Without what only a terminal understands; a line that was drawn over again is shown as it ended."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(_CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in lines)


def shortened(text: str, limit: int, path: str | None = None) -> str:
    """Its head and its tail, with a count of what is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    where = f"; all of it is in {path}" if path else ""
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out{where} …]\n{text[-half:]}"


def for_model_error(error: SandlotError) -> str:
    """What went wrong, whether the command may have run, and what can be done about it."""
    if isinstance(error, errors.SandboxLost):
        return lost_for_model(error)
    if isinstance(error, errors.FileProblem):
        return f"[{error.reason}: {error.message}]"
    advice = "Trying again later may help." if error.retryable else "Trying the same again will not help."
    ran = " It may have run nevertheless: look before you repeat it." if error.may_have_executed else ""
    return f"[{error.code}: {error.message}]\n{advice}{ran}"


def lost_for_model(error: errors.SandboxLost) -> str:
    loss = error.details.get("loss") or {}
    lost = ", ".join(loss.get("lost", ())) or "everything in it"
    kept = ", ".join(loss.get("kept", ())) or "nothing"
    reason = loss.get("reason") or error.message
    return (
        f"[sandbox_lost: the sandbox of this conversation is gone: {reason}]\n"
        f"Lost: {lost}. Kept: {kept}.\n"
        "Nothing replaces it unasked: say what is lost. A new, empty sandbox has to be asked for."
    )


def new_sandbox_for_model(session: AsyncSession) -> str | None:
    """For the first answer out of a sandbox that is not the one which the conversation had before."""
    before = session.info.predecessor if session.created else None
    if before is None:
        return None
    why = {
        EndReason.IDLE: "it was not used for too long",
        EndReason.LIFETIME: "its time was over",
        EndReason.DELETED: "it was deleted",
    }[before.reason]
    return (
        f"[this is a new, empty sandbox. The one that this conversation had has ended because {why}: "
        "its files, variables and processes are gone]"
    )


def _hint(result: Result) -> str:
    return {126: ": not executable", 127: ": no such command"}.get(result.exit_code, "")
