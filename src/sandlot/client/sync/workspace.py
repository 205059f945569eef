"""``SessionWorkspace``: ``AsyncSessionWorkspace`` without ``await``."""

from __future__ import annotations

from sandlot.client.sync.blocking import Facade, blocking, iterating
from sandlot.client.workspaces.async_workspace import AsyncSessionWorkspace


class SessionWorkspace(Facade[AsyncSessionWorkspace]):
    """A session's files in /workspace as a whole: how much they use, and their snapshots.

    A snapshot is the workspace at one moment. It never changes, and outlives its session. Where the server's
    store has no snapshots, calls about them raise ``Unsupported``.
    """

    status = blocking(AsyncSessionWorkspace.status)
    snapshot = blocking(AsyncSessionWorkspace.snapshot)
    snapshots = iterating(AsyncSessionWorkspace.snapshots)
    restore = blocking(AsyncSessionWorkspace.restore)
    begin_step = blocking(AsyncSessionWorkspace.begin_step)
    end_step = blocking(AsyncSessionWorkspace.end_step)
    diff = blocking(AsyncSessionWorkspace.diff)
    delete_snapshot = blocking(AsyncSessionWorkspace.delete_snapshot)
