"""Pages of volumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sandlot.domain.paging import begin_of, first_after, first_of, merged_pages
from sandlot.domain.volumes.volume import Volume, VolumePage


def check_listing(after: str | None, limit: int) -> str:
    """Where the page begins. Raises ``InvalidRequest``."""
    return begin_of(after, limit, "vol")


def volume_page(in_order: Sequence[Volume], limit: int) -> VolumePage:
    return VolumePage(*first_of(in_order, limit))


def page_among(volumes: Iterable[Volume], *, after: str | None, limit: int) -> VolumePage:
    return VolumePage(*first_after(volumes, check_listing(after, limit), limit))


def merged(pages: Mapping[str, VolumePage | None], limit: int) -> VolumePage:
    """The page of a fleet. ``pages``: by worker id, what each answered; None for nothing."""
    answers = {worker: None if page is None else (page.volumes, page.next) for worker, page in pages.items()}
    return VolumePage(*merged_pages(answers, limit))
