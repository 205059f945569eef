"""What a model is told: a command's result, or why there is none, in words that it can act on."""

from __future__ import annotations

import contextlib
import re
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result, marker, marking
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict
from sandlot.domain.kept_output import Omitted
from sandlot.domain.service import Catalogue
from sandlot.domain.session import EndReason, Session, SessionState

DEFAULT_CHARACTERS: Final = 30_000
PROMPT: Final = "sandbox"  # its name in the server's registry
LOOKED_AT_BYTES: Final = 256 * 1024  # of output, before only its ends are looked at
# Escape sequences steer terminals; to a model they are noise. The last alternative: one that was cut off.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-~]|\[[0-?]*$|$)"
)
# What would overwrite, ring or erase; tab and newline are text.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

MAX_USED: Final = 10_000  # sandboxes of which it is remembered that a command has run in them
_used: set[tuple[str, int]] = set()

_WHY: Final = {
    Verdict.TIMEOUT: "ended after {seconds:.0f} s because its time was over, and all that it had started "
    "with it. Give it more time, or start it in the background",
    Verdict.OOM: "ended because it needed more memory than the sandbox has",
    Verdict.DISK_FULL: "failed because the disk is full",
    Verdict.KILLED: "stopped before its end, on request or because its run was interrupted",
    Verdict.OUTPUT_LIMIT: "ended because it printed more than is allowed",
}


def for_model(result: Result, *, limit: int = DEFAULT_CHARACTERS, path: str | None = None) -> str:
    """Output in the order in which it came, shortened in the middle; then how it ended, unless it ended well.

    ``path``: where the whole output can be read.
    """
    if result.truncated:
        path = path and f"{path}, as far as it was kept"
    parts = [shown(result.raw.output, limit, path, result.raw.output_omitted).rstrip("\n")]
    if result.truncated:
        parts.append(f"[the command wrote {result.output_bytes:,} bytes, more than are kept]")
    if (why := why_ended(result)) is not None:
        parts.append(f"[{why}; exit code {result.exit_code}]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}{_hint(result)}]")
    if (note := shell_note(result)) is not None:
        parts.append(f"[{note}]")
    return "\n".join(parts)


def why_ended(result: Result) -> str | None:
    """Of a command that was not left to end by itself."""
    return why_of(result.verdict, result.duration_ms)


def why_of(verdict: Verdict, duration_ms: float) -> str | None:
    why = _WHY.get(verdict)
    return None if why is None else why.format(seconds=duration_ms / 1000)


def shell_note(result: Result) -> str | None:
    """What became of the shell, where it is not as it was."""
    if result.raw.exited.shell_ended:
        return (
            "the shell has ended, with its variables and what it had in the background; "
            "the next command starts a new one"
        )
    if result.raw.exited.shell_restarted:
        return "the shell had died since the last command; this one began in a new shell"
    return None


def shown(output: bytes, limit: int, path: str | None = None, omitted: Omitted | None = None) -> str:
    """Output as a model reads it. Of megabytes only the ends are looked at: a loop waits for this.

    ``omitted``: what of the output is not there. However much is left out, and by whom, one line says it.
    """
    if omitted is not None and omitted.at >= len(output):
        omitted = None  # nothing comes after it
    looked_at = max(LOOKED_AT_BYTES, 8 * limit)  # characters and escapes take several bytes
    if len(output) <= looked_at and omitted is None:
        text = plain(output.decode("utf-8", "replace"))
        return shortened(text, limit, path) if text.strip() else "(no output)"
    head, tail = (plain(end.decode("utf-8", "replace")) for end in both_ends(output, looked_at, omitted))
    half = limit // 2
    if omitted is not None and len(output) <= looked_at and len(head) <= half and len(tail) <= half:
        return head + marker(omitted) + tail
    head, tail = head[:half], tail[-half:]
    # About: what only a terminal understands is not shown, and a wrong byte is shown as three.
    not_shown = max(0, len(output) - len(head.encode()) - len(tail.encode()))
    missing = not_shown + (0 if omitted is None else omitted.bytes)
    return head + marking(f"about {missing:,} bytes left out{_where(path)}") + tail


def both_ends(output: bytes, most: int, omitted: Omitted | None) -> tuple[bytes, bytes]:
    """At most half of ``most`` of each end. Neither goes on behind what is ``omitted``: there is one gap, and
    no character is put together of two halves.
    """
    half = most // 2
    seam = len(output) // 2 if omitted is None else omitted.at
    return output[: min(seam, half)], output[max(seam, len(output) - half) :]


def plain(text: str) -> str:
    """Without what only a terminal understands; a line that was drawn over again is shown as it ended."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\n" not in text:
        text = text.replace("\r", "\n")  # where nothing else ends a line, it does
    lines = text.split("\n")
    return "\n".join(_CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in lines)


def shortened(text: str, limit: int, path: str | None = None) -> str:
    """Its head and its tail, with a count of what is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = f"{len(text) - 2 * half} characters left out{_where(path)}"
    return text[:half] + marking(left_out) + text[-half:]


def _where(path: str | None) -> str:
    return f"; all of it is in {path}" if path else ""


def for_model_error(error: SandlotError) -> str:
    """What went wrong, whether the command may have run, and what can be done about it."""
    if isinstance(error, errors.SandboxLost):
        return lost_for_model(error)
    if isinstance(error, errors.FileProblem):
        return f"[{error.reason}: {error.message}]"
    if isinstance(error, errors.SessionEnded):
        return f"[{error.code}: {error.message}]\nWhat was in its sandbox is gone; a new one is empty."
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


async def new_sandbox_for_model(session: AsyncSession) -> str | None:
    """For what comes first out of a sandbox that is not the one which the conversation had before.

    Asked before anything is done. Said until a command has run in it, or ``new_sandbox_was_told`` has been
    called: whoever made it may have been cut off before the model heard of it.
    """
    why = _why_another(session.info)
    if why is None or (not session.created and await _was_used(session)):
        return None
    return (
        f"[this is a new, empty sandbox. The one that this conversation had {why}: "
        "its files, variables and processes are gone]"
    )


async def new_sandbox_was_told(session: AsyncSession) -> None:
    """The model has heard of it: no other answer says it again, in this process or another.

    What all of them look at is whether a command has run. So where none has, one that does nothing is run.
    """
    with contextlib.suppress(SandlotError):  # what is wrong with the sandbox is told by the answer itself
        if not await _was_used(session):
            await session.run(":")


def _why_another(info: Session) -> str | None:
    if info.state is SessionState.LOST:
        return None  # that is told by itself, with every call
    if info.loss is not None:
        return f"was lost ({info.loss.reason})"
    if info.predecessor is None:
        return None
    return {
        EndReason.IDLE: "has ended because it was not used for too long",
        EndReason.LIFETIME: "has ended because its time was over",
        EndReason.DELETED: "was deleted",
    }[info.predecessor.reason]


async def _was_used(session: AsyncSession) -> bool:
    """Asked of a sandbox until it is so, and then known: the list of its commands may be long."""
    sandbox = (session.id, session.generation)
    if sandbox in _used:
        return True
    try:
        used = bool(await session.execs())
    except SandlotError:
        return True  # what is wrong will be told by the operation itself
    if used:
        if len(_used) >= MAX_USED:
            _used.clear()
        _used.add(sandbox)
    return used


def sandbox_prompt(catalogue: Catalogue) -> str:
    """What the server's registry has to say to a model about its sandbox; empty where it has nothing."""
    return next((str(entry.spec["text"]) for entry in catalogue.prompts if entry.name == PROMPT), "")


def _hint(result: Result) -> str:
    return {126: ": not executable", 127: ": no such command"}.get(result.exit_code, "")
