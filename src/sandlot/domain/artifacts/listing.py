"""Pages of artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage
from sandlot.domain.paging import begin_of, first_after, first_of, merged_pages


def check_listing(after: str | None, limit: int) -> str:
    """Where the page begins. Raises ``InvalidRequest``."""
    return begin_of(after, limit, "art")


def artifact_page(in_order: Sequence[Artifact], limit: int) -> ArtifactPage:
    return ArtifactPage(*first_of(in_order, limit))


def page_among(artifacts: Iterable[Artifact], *, after: str | None, limit: int) -> ArtifactPage:
    return ArtifactPage(*first_after(artifacts, check_listing(after, limit), limit))


def merged(pages: Mapping[str, ArtifactPage | None], limit: int) -> ArtifactPage:
    """The page of a fleet. ``pages``: by worker id, what each answered; None for nothing."""
    answers = {
        worker: None if page is None else (page.artifacts, page.next) for worker, page in pages.items()
    }
    return ArtifactPage(*merged_pages(answers, limit))
