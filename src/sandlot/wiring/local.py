"""A worker inside somebody's program."""

from __future__ import annotations

from typing import Any

import structlog

from sandlot.config.settings import server_settings
from sandlot.domain.errors import Conflict
from sandlot.wiring.logs import configure_logs
from sandlot.wiring.worker import named_by_folder, starting, worker_parts
from sandlot.worker.service import WorkerService

ONE_AT_A_TIME = (
    "Local mode is for one program at a time: let several share a server (`sandlot serve`, and Client() in "
    "place of Client.local()), or give each a data_dir (SANDLOT_DATA_DIR) of its own"
)


class LocalWorker(WorkerService):
    """A worker that lives as long as the program around it; what it made ends with it, if not to be kept."""

    def __init__(self, *, keep_sessions: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self._keep_sessions = keep_sessions
        self._found: set[str] = set()

    async def open(self) -> None:
        await super().open()
        self._found = self.session_ids

    async def close(self) -> None:
        if not self._keep_sessions:
            await self.stop_opening()
            await self.delete_sessions(self.session_ids - self._found)
        await super().close()


async def local_service(*, keep_sessions: bool = False, **given: Any) -> LocalWorker:
    """``given`` are settings (``ServerSettings``), before those of the environment.

    With ``keep_sessions`` the next local service finds them again. ``Conflict`` while another has the folder.
    """
    if not structlog.is_configured():
        # Inside somebody's program: trouble is told, on stderr; the rest is their business.
        configure_logs("warning", "text")
    settings = server_settings(**given)
    if "data_dir" not in settings.model_fields_set:
        settings = settings.model_copy(update={"data_dir": settings.data_dir / "local"})
    settings = named_by_folder(settings)
    worker = LocalWorker(keep_sessions=keep_sessions, **await worker_parts(settings))
    try:
        with starting(settings):
            await worker.open()
    except Conflict as error:
        await worker.close()
        raise Conflict(f"{error.message}. {ONE_AT_A_TIME}") from error
    except BaseException:
        await worker.close()
        raise
    return worker
