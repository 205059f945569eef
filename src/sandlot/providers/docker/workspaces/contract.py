"""What the Docker provider needs of a workspace store, beyond what a worker does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sandlot.providers.workspaces import WorkspaceStore


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files that an image brings for new workspaces.

    ``image_id``: the prepared image. ``read``: returns its /sandbox as a tar. The members are named
    ``sandbox/workspace/…`` and belong to ``IMAGE_UID``.
    """

    image_id: str
    read: Callable[[], AsyncIterator[bytes]]


class DockerWorkspaceStore(WorkspaceStore, Protocol):
    async def open(self) -> None:
        """Check that the store can be used, and finish or undo what a dead process left half done."""
        ...

    async def prepare(
        self, sandbox_id: str, uid: int, files: ImageFiles, workspace_id: str | None = None
    ) -> Mapping[str, Any]:
        """Make what a new sandbox needs, and return its mount at /sandbox for the container's spec.

        ``uid``: the user of its commands. ``workspace_id``: the workspace that it gets, which exists and
        which no other sandbox has. Without one it gets its first workspace, with the image's files.
        """
        ...

    async def release(self, sandbox_id: str, keep: Container[str] = ()) -> None:
        """Remove what ``prepare`` made, once the container is gone.

        Deletes the sandbox's workspace, unless its id is in ``keep``: then it stays, and no sandbox has it.
        """
        ...

    async def user_of(self, workspace_id: str) -> int | None:
        """The only user that can use this workspace's files; None if any can."""
        ...

    async def close(self) -> None: ...
