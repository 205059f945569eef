"""``Answer``: text for the model, and data for the program that runs the model."""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, ParamSpec

from sandlot.client.async_session import AsyncSession
from sandlot.domain import errors
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.integrations.model_text import (
    format_error,
    mark_new_sandbox_reported,
    new_sandbox_note,
)

P = ParamSpec("P")

# Wrong keys, images and options. A model cannot fix them, so they end the run for the developer.
_DEVELOPER_ERRORS: Final = (
    errors.Unauthorized,
    errors.ImageMissing,
    errors.TierMissing,
    errors.InvalidRequest,
    errors.ThreadDiffers,
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a model can view."""

    media_type: str
    content: bytes = field(repr=False)

    @property
    def base64(self) -> str:
        return b64encode(self.content).decode()


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an operation.

    ``data`` holds only JSON values. ``failed`` means that the operation did not do what was asked.
    ``pictures``: what the model sees beside the text.
    """

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    failed: bool = False
    pictures: tuple[Picture, ...] = ()

    @classmethod
    def from_error(cls, error: SandlotError) -> Answer:
        data = {
            "error": error.code,
            "message": error.message,
            "retryable": error.retryable,
            "may_have_executed": error.may_have_executed,
            "details": error.details,
        }
        return cls(format_error(error), data, failed=True)


def encode_utf8(text: str, label: str) -> bytes:
    """Encode text that a model wrote. JSON allows a lone surrogate, which UTF-8 cannot encode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{label} is not valid Unicode text: there is half a character at position {error.start}."
        ) from None


def answer_or_raise(error: SandlotError) -> Answer:
    """The answer if no sandbox is available. Re-raise errors that only a developer can fix."""
    if isinstance(error, _DEVELOPER_ERRORS):
        raise error
    return Answer.from_error(error)


def toolbox_operation(
    operation: Callable[Concatenate[AsyncSession, P], Awaitable[Answer]],
) -> Callable[Concatenate[AsyncSession, P], Awaitable[Answer]]:
    """Decorator: return errors as answers, and prepend a note if the sandbox is a replacement.

    Every error inside a sandbox becomes an answer, because the model chose the arguments and can
    choose the next step.
    """

    @functools.wraps(operation)
    async def call(session: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        note = await new_sandbox_note(session)
        try:
            answer = await operation(session, *args, **kwargs)
        except SandlotError as error:
            answer = Answer.from_error(error)
        if note is None:
            return answer
        await mark_new_sandbox_reported(session)
        return replace(answer, text=f"{note}\n{answer.text}")

    return call
