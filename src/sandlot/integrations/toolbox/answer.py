"""``Answer``: what a model reads, and what the program around it gets."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, ParamSpec

from sandlot.client.async_session import AsyncSession
from sandlot.domain import errors
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.integrations.model_text import (
    for_model_error,
    new_sandbox_for_model,
    new_sandbox_was_told,
)

P = ParamSpec("P")

# Wrong keys, images and options: no model can mend them, so they end the run and are seen by who can.
_FOR_THE_DEVELOPER: Final = (
    errors.Unauthorized,
    errors.ImageMissing,
    errors.TierMissing,
    errors.InvalidRequest,
    errors.ThreadDiffers,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """``data`` is JSON throughout. ``failed``: the operation did not do what was asked."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    failed: bool = False

    @classmethod
    def of_error(cls, error: SandlotError) -> Answer:
        data = {
            "error": error.code,
            "message": error.message,
            "retryable": error.retryable,
            "may_have_executed": error.may_have_executed,
            "details": error.details,
        }
        return cls(for_model_error(error), data, failed=True)


def utf8(text: str, what: str) -> bytes:
    """What a model wrote, as bytes; JSON lets half a character through, and UTF-8 does not."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} is not text: half of a character stands at position {error.start}"
        ) from None


def refusal(error: SandlotError) -> Answer:
    """What a model is told when no sandbox is to be had; what only a developer can mend is raised again."""
    if isinstance(error, _FOR_THE_DEVELOPER):
        raise error
    return Answer.of_error(error)


def told(
    operation: Callable[Concatenate[AsyncSession, P], Awaitable[Answer]],
) -> Callable[Concatenate[AsyncSession, P], Awaitable[Answer]]:
    """In a sandbox every error is an answer: the arguments were the model's, and so is the next step."""

    @functools.wraps(operation)
    async def call(session: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        note = await new_sandbox_for_model(session)
        try:
            answer = await operation(session, *args, **kwargs)
        except SandlotError as error:
            answer = Answer.of_error(error)
        if note is None:
            return answer
        await new_sandbox_was_told(session)
        return replace(answer, text=f"{note}\n{answer.text}")

    return call
