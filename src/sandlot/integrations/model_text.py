"""What a model is told: a command's result, or why there is none, in words that it can act on."""

from __future__ import annotations

import re
from typing import Final

from sandlot.client.result import Result
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Verdict

DEFAULT_CHARACTERS: Final = 30_000
# Escape sequences steer terminals; to a model they are noise.
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

_WHY: Final = {
    Verdict.TIMEOUT: "ended after {seconds:.0f} s: its time was over, and all that it started is gone",
    Verdict.OOM: "ended because it needed more memory than the sandbox has",
    Verdict.DISK_FULL: "failed because the disk is full",
    Verdict.KILLED: "killed on request",
    Verdict.OUTPUT_LIMIT: "ended because it printed more than the limit",
}


def for_model(result: Result, *, limit: int = DEFAULT_CHARACTERS, path: str | None = None) -> str:
    """Output in the order in which it came, shortened in the middle; then how it ended, unless it ended well.

    ``path``: where the whole output can be read.
    """
    text = shortened(_ESCAPES.sub("", result.output).replace("\r\n", "\n"), limit, path)
    parts = [text.rstrip("\n")] if text.strip() else ["(no output)"]
    if result.truncated:
        where = f"; all of it is in {path}" if path else ""
        parts.append(f"[output cut: the command wrote {result.output_bytes} bytes{where}]")
    if (why := _WHY.get(result.verdict)) is not None:
        parts.append(f"[{why.format(seconds=result.duration_ms / 1000)}; exit code {result.exit_code}]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(parts)


def shortened(text: str, limit: int, path: str | None = None) -> str:
    """Its head and its tail, with a count of what is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    where = f"; the whole is in {path}" if path else ""
    missing = len(text) - 2 * half
    return f"{text[:half]}\n[… {missing} characters left out{where} …]\n{text[-half:]}"


def for_model_error(error: SandlotError) -> str:
    """What went wrong, whether the command may have run, and what can be done about it."""
    if isinstance(error, errors.SandboxLost):
        loss = error.details.get("loss") or {}
        lost = ", ".join(loss.get("lost", ())) or "everything in it"
        kept = ", ".join(loss.get("kept", ())) or "nothing"
        return (
            f"[sandbox_lost: {error.message}]\n"
            f"Lost: {lost}. Kept: {kept}. It is not replaced unless you ask: restart gives you an empty one."
        )
    advice = "Trying again may help." if error.retryable else "Trying the same again will not help."
    ran = " It may have run nevertheless: look before you repeat it." if error.may_have_executed else ""
    return f"[{error.code}: {error.message}]\n{advice}{ran}"
