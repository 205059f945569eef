"""``WorkerBuilds``: builds templates one after another, and offers each as an environment when it is done.

A build is a client's code on the operator's engine, so this exists only where the operator switched it on.
Everything is bounded: builds that wait, their files, their time, and what they write.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import structlog

from sandlot.config.registry.built import BuiltEnvironments
from sandlot.domain.errors import Busy, Conflict, NotFound, SandlotError, Unavailable
from sandlot.domain.templates.build import (
    MAX_LINE,
    MAX_LOG_LINES,
    BuildFailed,
    BuildState,
    LogLine,
    NewTemplate,
    Plan,
    Progress,
    Step,
    check_hash,
)
from sandlot.worker.templates.uploads import Uploads

log = structlog.get_logger("sandlot.worker")

# Builds that were announced, wait or run. One runs at a time: they share the machine with the sandboxes.
MAX_OPEN: Final = 16
# How long an announced build waits for its start, and how long one that ended can be asked about.
KEPT_S: Final = 3600.0
MAX_KEPT: Final = 64
_CUT: Final = "(The rest of the log is left out.)"


class ImageBuilder(Protocol):
    async def build(
        self,
        name: str,
        image: str,
        steps: tuple[Step, ...],
        archives: Mapping[str, Path],
        write: Callable[[str], None],
        *,
        fresh: bool = False,
    ) -> str: ...

    async def remove(self, name: str) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Build:
    id: str
    new: NewTemplate
    at: float
    state: BuildState = BuildState.WAITING
    started: bool = False
    lines: list[LogLine] = field(default_factory=list)
    problem: str = ""
    failed_step: int | None = None

    @property
    def is_over(self) -> bool:
        return self.state in (BuildState.READY, BuildState.ERROR)

    def write(self, text: str, *, failed: bool = False) -> None:
        if len(self.lines) < MAX_LOG_LINES:
            self.lines.append(LogLine(time.time(), text[:MAX_LINE], failed))
        elif self.lines[-1].text != _CUT:
            self.lines[-1] = LogLine(time.time(), _CUT)


class WorkerBuilds:
    """``reload``: offers what is now declared."""

    def __init__(
        self,
        builder: ImageBuilder,
        declarations: BuiltEnvironments,
        uploads: Uploads,
        reload: Callable[[], Awaitable[object]],
    ) -> None:
        self._builder = builder
        self._declarations = declarations
        self._uploads = uploads
        self._reload = reload
        self._builds: dict[str, _Build] = {}
        self._queue: deque[tuple[_Build, Plan]] = deque()
        self._running: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._uploads.open()

    async def close(self) -> None:
        self._queue.clear()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._builder.close()

    def request(self, new: NewTemplate) -> Progress:
        new.check()
        self._declarations.check_free(new.name)
        self._forget_old()
        if sum(not build.is_over for build in self._builds.values()) >= MAX_OPEN:
            raise Busy(
                f"{MAX_OPEN} builds wait or run already. Try again when one has ended.", retry_after_s=30
            )
        build = _Build(f"bld-{secrets.token_hex(12)}", new, time.time())
        self._builds[build.id] = build
        return _progress(build, ())

    def has_files(self, template: str, files: str) -> bool:
        check_hash(files)
        self._check_announced(template)
        return self._uploads.has(template, files)

    async def receive(self, template: str, files: str, content: AsyncIterator[bytes]) -> None:
        check_hash(files)
        self._check_announced(template)
        await self._uploads.receive(template, files, content)

    def start(self, template: str, build_id: str, plan: Plan) -> None:
        build = self._find(template, build_id)
        plan.check()
        if build.started:
            raise Conflict("This build was started already. Ask for another one.")
        for files in plan.files:
            if not self._uploads.has(template, files):
                raise NotFound(f"The files {files[:12]}… of a COPY were not uploaded. Build again.")
        # A mistake in the name of what it is built on is told at once.
        self._declarations.source(plan.environment)
        build.started = True
        self._queue.append((build, plan))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all(), name="build templates")

    def progress(self, template: str, build_id: str, after: int, limit: int) -> Progress:
        build = self._find(template, build_id)
        return _progress(build, tuple(build.lines[after : after + limit]))

    async def remove(self, template: str) -> bool:
        content = self._declarations.declared(template)
        if content is None:
            return False
        self._declarations.restore(template, None)
        try:
            await self._reload()
        except SandlotError:
            self._declarations.restore(template, content)
            raise
        await self._builder.remove(template)
        return True

    async def _run_all(self) -> None:
        while self._queue:
            build, plan = self._queue.popleft()
            build.state = BuildState.BUILDING
            try:
                await self._run(build, plan)
                build.state = BuildState.READY
            except BuildFailed as error:
                self._fail(build, str(error), error.step)
            except SandlotError as error:
                self._fail(build, error.message, None)
            except asyncio.CancelledError:
                self._fail(build, "The server stopped. Build again.", None)
                raise
            except Exception:
                log.exception("a template's build failed", template=build.new.name)
                self._fail(build, "The server made a mistake. Its log says more.", None)
            finally:
                if not self._is_wanted(build.new.name):
                    await asyncio.to_thread(self._uploads.remove, build.new.name)

    async def _run(self, build: _Build, plan: Plan) -> None:
        name = build.new.name
        source = self._declarations.source(plan.environment)
        image = plan.image or str(source["image"])
        log.info("building a template", template=name, image=image, steps=len(plan.steps))
        archives = {files: self._uploads.path(name, files) for files in plan.files}
        reference = await self._builder.build(
            name, image, plan.steps, archives, build.write, fresh=plan.fresh
        )
        before = self._declarations.declared(name)
        self._declarations.declare(build.new, reference, source, from_image=plan.image is not None)
        try:
            await self._reload()
        except SandlotError as error:
            self._declarations.restore(name, before)
            raise Unavailable(f"The image is built, but it cannot be used: {error.message}") from error
        log.info("a template is built", template=name)

    def _fail(self, build: _Build, problem: str, step: int | None) -> None:
        build.state, build.problem, build.failed_step = BuildState.ERROR, problem, step
        build.write(problem, failed=True)
        log.warning("a template's build failed", template=build.new.name, error=problem[:500])

    def _find(self, template: str, build_id: str) -> _Build:
        build = self._builds.get(build_id)
        if build is None or build.new.name != template:
            raise NotFound(
                "There is no such build here. A server forgets builds when it stops, and an hour after "
                "they end."
            )
        return build

    def _check_announced(self, template: str) -> None:
        if not self._is_wanted(template):
            raise NotFound("No build of this template was announced that could use these files.")

    def _is_wanted(self, template: str) -> bool:
        return any(each.new.name == template and not each.is_over for each in self._builds.values())

    def _forget_old(self) -> None:
        """Forget builds that were never started, or that ended a while ago."""
        now = time.time()
        for build in list(self._builds.values()):
            idle = build.is_over or not build.started
            if (idle and now - build.at > KEPT_S) or (build.is_over and len(self._builds) > MAX_KEPT):
                del self._builds[build.id]
                if not self._is_wanted(build.new.name):
                    self._uploads.remove(build.new.name)


def _progress(build: _Build, lines: tuple[LogLine, ...]) -> Progress:
    return Progress(build.id, build.new.name, build.state, lines, build.problem, build.failed_step)
