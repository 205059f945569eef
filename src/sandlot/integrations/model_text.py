"""Formats results and errors as text for a model, in words that the model can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Protocol

from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result, marker, marker_line
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict
from sandlot.domain.kept_output import Omitted
from sandlot.domain.network.decisions import Denied
from sandlot.domain.service import Catalogue
from sandlot.domain.session import KEPT_FILES, EndReason, Session, SessionState
from sandlot.domain.text.terminal_codes import strip_terminal_codes


class Denials(Protocol):
    """A result of a command or of code, as far as it says what was denied."""

    @property
    def denied(self) -> Sequence[Denied]: ...


DEFAULT_CHARACTERS: Final = 30_000
MAX_SHOWN_DENIALS: Final = 5
PROMPT_NAME: Final = "sandbox"  # the prompt's name in the server's registry
SCANNED_BYTES: Final = 256 * 1024  # of longer output only the two ends are scanned

MAX_REMEMBERED_SANDBOXES: Final = 10_000  # sandboxes known to have run a command
_sandboxes_with_execs: set[tuple[str, int]] = set()

_VERDICT_TEXTS: Final = {
    Verdict.TIMEOUT: "timed out after {seconds:.0f} s and was killed with everything it started. "
    "Set a longer timeout, or run it in the background",
    Verdict.OOM: "killed because the sandbox ran out of memory",
    Verdict.DISK_FULL: "failed because the sandbox's disk is full",
    Verdict.KILLED: "killed on request, or because the run was interrupted",
    Verdict.OUTPUT_LIMIT: "killed because it exceeded its output limit",
}


def format_result(result: Result, *, limit: int = DEFAULT_CHARACTERS, path: str | None = None) -> str:
    """The output, shortened in the middle, and how the command ended if it failed.

    The output is in its original order. ``path``: the file that holds the whole output.
    """
    if result.truncated:
        path = path and f"{path}, as far as it was kept"
    parts = [format_output(result.raw.output, limit, path, result.raw.output_omitted).rstrip("\n")]
    if result.truncated:
        parts.append(f"[the command wrote {result.output_bytes:,} bytes; some of them were not kept]")
    if (why := describe_early_end(result)) is not None:
        parts.append(f"[{why}; exit code {result.exit_code}]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}{_exit_code_hint(result)}]")
    parts += denial_notes(result)
    if (note := shell_note(result)) is not None:
        parts.append(f"[{note}]")
    return "\n".join(parts)


def describe_early_end(result: Result) -> str | None:
    """Why a command was stopped before its own end; None if it ended by itself."""
    return describe_verdict(result.verdict, result.duration_ms)


def describe_verdict(verdict: Verdict, duration_ms: float) -> str | None:
    """Like ``describe_early_end``, for a verdict."""
    why = _VERDICT_TEXTS.get(verdict)
    return None if why is None else why.format(seconds=duration_ms / 1000)


def denial_notes(result: Denials) -> list[str]:
    """What the sandbox's network denied while the command ran, in words that a model can act on."""
    notes = []
    for denied in result.denied[:MAX_SHOWN_DENIALS]:
        advice = "If you need it, ask the user to allow it." if denied.entry else denied.ask
        notes.append(f"[the network policy denied {denied.target} ({denied.rule}). {denied.why} {advice}]")
    if (more := len(result.denied) - MAX_SHOWN_DENIALS) > 0:
        notes.append(f"[and {more} more connections were denied]")
    return notes


def shell_note(result: Result) -> str | None:
    """What happened to the shell, or None if it is unchanged."""
    if result.raw.exited.shell_ended:
        return (
            "the shell ended, and its variables and background jobs are gone; the next command starts "
            "a new shell"
        )
    if result.raw.exited.shell_restarted:
        return "the shell had died since the last command; this command ran in a new shell"
    return None


def format_output(output: bytes, limit: int, path: str | None = None, omitted: Omitted | None = None) -> str:
    """Format output for a model.

    Only the ends of very long output are scanned, because this blocks an event loop. ``omitted`` is
    the part that the service did not keep. One marker line covers that part and whatever this
    function leaves out.
    """
    if omitted is not None and omitted.at >= len(output):
        omitted = None  # no output follows the gap
    scanned = max(SCANNED_BYTES, 8 * limit)  # a character or an escape sequence takes several bytes
    if len(output) <= scanned and omitted is None:
        text = strip_terminal_codes(output.decode("utf-8", "replace"))
        return shorten(text, limit, path) if text.strip() else "(no output)"
    head, tail = (
        strip_terminal_codes(end.decode("utf-8", "replace"))
        for end in head_and_tail(output, scanned, omitted)
    )
    half = limit // 2
    if omitted is not None and len(output) <= scanned and len(head) <= half and len(tail) <= half:
        return head + marker(omitted) + tail
    head, tail = head[:half], tail[-half:]
    # The count is approximate: terminal codes are removed, and an invalid byte becomes three bytes.
    not_shown = max(0, len(output) - len(head.encode()) - len(tail.encode()))
    missing = not_shown + (0 if omitted is None else omitted.bytes)
    return head + marker_line(f"about {missing:,} bytes left out{_full_output_hint(path)}") + tail


def head_and_tail(output: bytes, max_bytes: int, omitted: Omitted | None) -> tuple[bytes, bytes]:
    """The two ends of the output, each at most half of ``max_bytes``.

    Neither end crosses the ``omitted`` part. So there is only one gap, and no character is joined
    from two halves.
    """
    half = max_bytes // 2
    split_at = len(output) // 2 if omitted is None else omitted.at
    return output[: min(split_at, half)], output[max(split_at, len(output) - half) :]


def shorten(text: str, limit: int, path: str | None = None) -> str:
    """The head and the tail of a text, with a count of the characters left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = f"{len(text) - 2 * half} characters left out{_full_output_hint(path)}"
    return text[:half] + marker_line(left_out) + text[-half:]


def _full_output_hint(path: str | None) -> str:
    return f"; the full output is in {path}" if path else ""


def format_error(error: SandlotError) -> str:
    """Say what went wrong, whether the command may have run, and what the model can do about it."""
    if isinstance(error, errors.SandboxLost):
        return format_sandbox_lost(error)
    if isinstance(error, errors.FileProblem):
        return f"[{error.reason}: {error.message}]"
    if isinstance(error, errors.SessionEnded):
        return f"[{error.code}: {error.message}]\nEverything in its sandbox is gone. A new sandbox is empty."
    advice = "Retrying later may help." if error.retryable else "Retrying the same call will not help."
    ran = " It may have run anyway: check before you run it again." if error.may_have_executed else ""
    return f"[{error.code}: {error.message}]\n{advice}{ran}"


def format_sandbox_lost(error: errors.SandboxLost) -> str:
    loss = error.details.get("loss") or {}
    lost = ", ".join(loss.get("lost", ())) or "everything in it"
    kept = ", ".join(loss.get("kept", ())) or "nothing"
    reason = loss.get("reason") or error.message
    return (
        f"[sandbox_lost: the sandbox of this conversation is gone: {reason}]\nLost: {lost}. Kept: "
        f"{kept}.\nIt is not replaced automatically. Tell the user what was lost, then ask for a new "
        "sandbox."
    )


async def new_sandbox_note(session: AsyncSession) -> str | None:
    """A note for the model that the conversation's earlier sandbox was replaced, or None.

    Call this before the operation. The note is repeated until a command has run in the sandbox or
    ``mark_new_sandbox_reported`` was called: the call that created the sandbox may have been cut
    off before the model read its answer.
    """
    why = _replacement_reason(session.info)
    if why is None or (not session.created and await _has_execs(session)):
        return None
    info = session.info
    if began_from_snapshot(info):
        return (
            "[this is a new sandbox. Its files in /workspace are those of a snapshot. The variables and "
            "processes of the previous sandbox are gone]"
        )
    if has_kept_files(info):
        return (
            f"[this is a new sandbox. The previous one {why}: its files in /workspace are still here, its "
            "variables and processes are gone]"
        )
    if (files := earlier_files(info)) is not None:
        return (
            f"[this is a new sandbox. The previous one {why}: its {files} are here, later changes and its "
            "variables and processes are gone]"
        )
    return (
        f"[this is a new, empty sandbox. The previous one {why}: its files, variables and processes are gone]"
    )


def recreated_note(info: Session) -> str:
    """A note for the model that the conversation's lost sandbox was replaced, because it asked for that."""
    if has_kept_files(info):
        return "[this is a new sandbox with the files in /workspace; everything else in the lost one is gone]"
    if (files := earlier_files(info)) is not None:
        return f"[this is a new sandbox with the {files}; everything else in the lost one is gone]"
    return "[this is a new, empty sandbox; everything in the lost one is gone]"


def has_kept_files(info: Session) -> bool:
    """Whether the session's sandbox was replaced by one with the same files."""
    return info.loss is not None and KEPT_FILES in info.loss.kept


def earlier_files(info: Session) -> str | None:
    """Which files of an earlier time the session's new sandbox has, as its loss report says it."""
    kept = () if info.loss is None else info.loss.kept
    return next((thing for thing in kept if thing.startswith(f"{KEPT_FILES} as of ")), None)


def began_from_snapshot(info: Session) -> bool:
    """Whether the files are those of a snapshot, since the session's first sandbox or its last loss."""
    snapshot = None if info.workspace is None else info.workspace.snapshot
    return snapshot is not None and (info.loss is None or snapshot in info.loss.reason)


async def mark_new_sandbox_reported(session: AsyncSession) -> None:
    """Record that the model has read the note, so that no process repeats it.

    All processes check whether the sandbox has run a command. If it has not, this runs a no-op.
    """
    with contextlib.suppress(SandlotError):  # the answer itself reports a broken sandbox
        if not await _has_execs(session):
            await session.run(":")


def _replacement_reason(info: Session) -> str | None:
    if info.state is SessionState.LOST:
        return None  # every call reports a lost sandbox itself
    if info.loss is not None:
        return f"was lost ({info.loss.reason})"
    if info.predecessor is None:
        return None
    return {
        EndReason.IDLE: "was idle for too long and expired",
        EndReason.LIFETIME: "reached its maximum lifetime",
        EndReason.DELETED: "was deleted",
    }[info.predecessor.reason]


async def _has_execs(session: AsyncSession) -> bool:
    """Whether a command has run in the sandbox.

    A positive answer is remembered, because the list of commands may be long.
    """
    sandbox = (session.id, session.generation)
    if sandbox in _sandboxes_with_execs:
        return True
    try:
        used = bool(await session.execs())
    except SandlotError:
        return True  # the operation itself will report the error
    if used:
        if len(_sandboxes_with_execs) >= MAX_REMEMBERED_SANDBOXES:
            _sandboxes_with_execs.clear()
        _sandboxes_with_execs.add(sandbox)
    return used


def sandbox_prompt(catalogue: Catalogue) -> str:
    """The registry's prompt that describes the sandbox to a model; empty if there is none."""
    return next((str(entry.spec["text"]) for entry in catalogue.prompts if entry.name == PROMPT_NAME), "")


def _exit_code_hint(result: Result) -> str:
    return {126: ": not executable", 127: ": command not found"}.get(result.exit_code, "")
