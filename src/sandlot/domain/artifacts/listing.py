"""Pages of artifacts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage
from sandlot.domain.paging import begin_of, first_after, first_of, merged_pages

# Named as missing if nobody can say what workers that are gone have saved.
OBJECT_STORAGE: Final = "object storage"


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


def with_saved(
    pages: Mapping[str, ArtifactPage | None],
    gone: Collection[str],
    saved: Mapping[str, ArtifactPage | None],
) -> Mapping[str, ArtifactPage | None]:
    """The workers' pages, with what those that are ``gone`` have saved in object storage in their place.

    ``saved``: empty without object storage; the workers that are gone stay missing then.
    """
    page = saved.get(OBJECT_STORAGE)
    if page is None:
        return {**pages, **saved}
    # A worker may have come back between the two questions.
    listed = {artifact.id for of_one in pages.values() if of_one for artifact in of_one.artifacts}
    others = tuple(artifact for artifact in page.artifacts if artifact.id not in listed)
    here = {worker: found for worker, found in pages.items() if found is not None or worker not in gone}
    return {**here, OBJECT_STORAGE: replace(page, artifacts=others)}
