"""``Artifacts`` and ``SessionArtifacts``: the async classes without ``await``."""

from __future__ import annotations

from sandlot.client.artifacts.async_artifacts import AsyncArtifacts, AsyncSessionArtifacts
from sandlot.client.sync.blocking import Facade, blocking, iterating


class Artifacts(Facade[AsyncArtifacts]):
    """The files that your sessions have kept: list, read, download and delete them.

    An artifact never changes, and outlives its session.
    """

    list = iterating(AsyncArtifacts.list)
    get = blocking(AsyncArtifacts.get)
    read = blocking(AsyncArtifacts.read)
    stream = iterating(AsyncArtifacts.stream)
    download = blocking(AsyncArtifacts.download)
    delete = blocking(AsyncArtifacts.delete)


class SessionArtifacts(Facade[AsyncSessionArtifacts]):
    """The files of a session that stay after its end: keep, list and download them."""

    keep = blocking(AsyncSessionArtifacts.keep)
    list = iterating(AsyncSessionArtifacts.list)
    download = blocking(AsyncSessionArtifacts.download)
