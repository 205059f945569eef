"""Pages of what a tenant has, oldest first: how long a page may be, and where the next one begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import SessionPage
from sandlot.domain.session import Session

MAX_PAGE = 1000
_PLACE: Final = re.compile(r"(\d{13}\.\d{6})-([a-z]{3}_[0-9a-f]{32})")


class Placed(Protocol):
    """What is listed by the time of its creation, then by its id."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...


T = TypeVar("T", bound=Placed)


def check_page(limit: int) -> None:
    if not 0 < limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be between 1 and {MAX_PAGE}.")


def place_of(one: Placed) -> str:
    """Its place in lists, and the cursor of a page that ends with it. Places sort as texts."""
    return f"{one.created_at:020.6f}-{one.id}"


def parse_place(text: str, kind: str) -> tuple[str, str]:
    """The creation time, as written in a cursor, and the id. ``kind``: how the ids begin."""
    match = _PLACE.fullmatch(text)
    if match is None or not match[2].startswith(f"{kind}_"):
        raise InvalidRequest(
            f"{text!r:.80} is not a page cursor. Pass the 'next' value of the previous page."
        )
    return match[1], match[2]


def begin_of(after: str | None, limit: int, kind: str) -> str:
    """The place after which a page begins. Raises ``InvalidRequest``."""
    check_page(limit)
    if after is not None:
        parse_place(after, kind)
    return after or ""


def first_of(in_order: Sequence[T], limit: int) -> tuple[tuple[T, ...], str | None]:
    """The first ``limit`` of these, and where the next page begins if there are more."""
    return tuple(in_order[:limit]), place_of(in_order[limit - 1]) if len(in_order) > limit else None


def first_after(found: Iterable[T], begin: str, limit: int) -> tuple[tuple[T, ...], str | None]:
    """The first ``limit`` of these, in any order, that come after a place."""
    return first_of(sorted((one for one in found if place_of(one) > begin), key=place_of), limit)


def merged_pages(
    pages: Mapping[str, tuple[Sequence[T], str | None] | None], limit: int
) -> tuple[tuple[T, ...], str | None, tuple[str, ...]]:
    """The page of a fleet, and the workers that did not answer.

    ``pages``: by worker id, what each worker answered to the same question; None for nothing.
    """
    answers = [page for page in pages.values() if page is not None]
    missing = tuple(sorted(worker for worker, page in pages.items() if page is None))
    # Beyond the last one of a worker that has more, others of its may belong between.
    known = min((after for _, after in answers if after is not None), default=None)
    in_order = sorted((one for page, _ in answers for one in page), key=place_of)
    if known is not None:
        in_order = [one for one in in_order if place_of(one) <= known]
    first, after = first_of(in_order, limit)
    if after is None and known is not None:
        after = place_of(first[-1]) if first else known
    return first, after, missing


def page_of(sessions: Iterable[Session], *, after: str | None, limit: int) -> SessionPage:
    """The page of these sessions that follows the cursor ``after``, or the first page."""
    return SessionPage(*first_after(sessions, begin_of(after, limit, "ses"), limit))
