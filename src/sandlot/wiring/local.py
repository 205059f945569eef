"""A worker inside the caller's program."""

from __future__ import annotations

from typing import Any

import structlog

from sandlot.config.data_folder import LOCAL_DIR
from sandlot.config.reading import server_settings
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import Conflict
from sandlot.wiring.logs import configure_logs
from sandlot.wiring.worker import named_by_folder, starting, worker_parts
from sandlot.worker.host import WorkerHost
from sandlot.worker.service import WorkerService

# Longer than a server's: when the only caller gives up, the program ends, and the work with it. The first
# use of a large image can take minutes.
QUEUE_TIMEOUT_S = 300.0
ONE_AT_A_TIME = (
    "Local mode supports one program at a time. Run `sandlot serve` and use Client() in each program, or "
    "give each program its own data_dir (SANDLOT_DATA_DIR)."
)


class LocalWorker(WorkerHost, WorkerService):
    """A worker that lives as long as the program around it, which is its only caller.

    It deletes the sessions that it created when it closes, unless ``keep_sessions`` is set.
    """

    def __init__(self, *, keep_sessions: bool, **parts: Any) -> None:
        WorkerHost.__init__(self, **parts)
        WorkerService.__init__(self, OWNER, self._parts, self._options, self._catalogue, self._status)
        self._keep_sessions = keep_sessions
        self._existing: set[str] = set()  # sessions of earlier programs, which stay

    async def open(self) -> None:
        await super().open()
        self._existing = self.session_ids

    async def close(self) -> None:
        if not self._keep_sessions:
            await self.stop_opening()
            await self.delete_sessions(self.session_ids - self._existing)
        await super().close()


async def local_service(*, keep_sessions: bool = False, **overrides: Any) -> LocalWorker:
    """Start a worker in this process.

    ``overrides`` are settings (``ServerSettings``) and take precedence over environment variables.
    With ``keep_sessions`` the next local service finds the sessions again. Raises ``Conflict``
    while another process uses the folder.
    """
    if not structlog.is_configured():
        # This is the caller's program, so log only warnings and errors, on stderr.
        configure_logs("warning", "text")
    settings = server_settings(**overrides)
    if "data_dir" not in settings.model_fields_set:
        settings = settings.model_copy(update={"data_dir": settings.data_dir / LOCAL_DIR})
    if "queue_timeout_s" not in settings.model_fields_set:
        settings = settings.model_copy(update={"queue_timeout_s": QUEUE_TIMEOUT_S})
    settings = named_by_folder(settings)
    worker = LocalWorker(keep_sessions=keep_sessions, **await worker_parts(settings))
    try:
        with starting(settings):
            await worker.open()
    except Conflict as error:
        await worker.close()
        raise Conflict(f"{error.message.removesuffix('.')}. {ONE_AT_A_TIME}") from error
    except BaseException:
        await worker.close()
        raise
    return worker
