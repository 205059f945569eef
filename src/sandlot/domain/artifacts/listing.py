"""Pages of artifacts: their order, and where the next page begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.paging import check_page

_PLACE: Final = re.compile(r"\d{13}\.\d{6}-art_[0-9a-f]{32}")


def place_of(artifact: Artifact) -> str:
    """An artifact's place in lists, and the cursor of a page that ends with it: by time, then by id."""
    return f"{artifact.created_at:020.6f}-{artifact.id}"


def check_place(text: str) -> str:
    if _PLACE.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text!r:.80} is not a page cursor. Pass the 'next' value of the previous page."
        )
    return text


def check_listing(after: str | None, limit: int) -> str:
    """Where the page begins. Raises ``InvalidRequest``."""
    check_page(limit)
    return "" if after is None else check_place(after)


def artifact_page(in_order: Sequence[Artifact], limit: int) -> ArtifactPage:
    """The first ``limit`` of these artifacts. There is a next page if there are more."""
    more = len(in_order) > limit
    return ArtifactPage(tuple(in_order[:limit]), place_of(in_order[limit - 1]) if more else None)


def page_among(artifacts: Iterable[Artifact], *, after: str | None, limit: int) -> ArtifactPage:
    begin = check_listing(after, limit)
    found = sorted((one for one in artifacts if place_of(one) > begin), key=place_of)
    return artifact_page(found, limit)


def merged(pages: Mapping[str, ArtifactPage | None], limit: int) -> ArtifactPage:
    """The page of a fleet. ``pages``: by worker id, what each worker answered to the same question; None for
    nothing. Workers that did not answer are named.
    """
    answers = [page for page in pages.values() if page is not None]
    missing = tuple(sorted(worker for worker, page in pages.items() if page is None))
    # Beyond the last one of a worker that has more, others of its may belong between.
    known = min((page.next for page in answers if page.next is not None), default=None)
    in_order = sorted((artifact for page in answers for artifact in page.artifacts), key=place_of)
    if known is not None:
        in_order = [artifact for artifact in in_order if place_of(artifact) <= known]
    first = tuple(in_order[:limit])
    if known is None and len(in_order) <= limit:
        return ArtifactPage(first, None, missing)
    return ArtifactPage(first, place_of(first[-1]) if first else known, missing)
