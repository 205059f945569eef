"""What a worker counts, on the scripted engine: each event once, under the right label."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import SandboxLost
from sandlot.domain.execution import ExecRequest
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.history.loss_causes import cause_of
from sandlot.worker.history.options import HistoryOptions


def value(figures: Figures, name: str, *labels: str) -> float:
    for metric, values in figures.values():
        if metric.name == name:
            return values.get(labels, 0.0)
    return 0.0


def observed(figures: Figures, name: str, *labels: str) -> int:
    for metric, found in figures.distributions():
        if metric.name == name and labels in found:
            return sum(found[labels].counts)
    return 0


@pytest.mark.parametrize("history", [True, False])
async def test_sessions_and_commands_are_counted(scene: Scene, history: bool) -> None:
    worker = await scene.start(history=HistoryOptions(enabled=history))
    session = (await worker.create_session(CreateSession())).session
    request = ExecRequest(command="true")
    await worker.execute(session.id, request)
    await worker.execute(session.id, request)  # the same exec: it runs once, and counts once
    figures = worker.figures
    assert value(figures, "sandlot_sessions_opened_total", "base", "created") == 1
    assert observed(figures, "sandlot_session_open_seconds", "base", "created") == 1
    assert observed(figures, "sandlot_exec_seconds", "base") == 1
    assert value(figures, "sandlot_execs_total", "base", "ok") == 1
    assert value(figures, "sandlot_execs_running") == 0
    await worker.delete_session(session.id)
    assert value(figures, "sandlot_sessions_ended_total", "deleted") == 1


async def test_losses_are_counted_by_cause(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    assert value(worker.figures, "sandlot_sandboxes_lost_total", "ended") == 0
    sandbox_id = session.sandbox_id
    assert sandbox_id is not None
    scene.engine.sandboxes[sandbox_id].die("the sandbox's container ended with exit code 137")
    with pytest.raises(SandboxLost):
        await worker.execute(session.id, ExecRequest(command="true"))
    assert value(worker.figures, "sandlot_sandboxes_lost_total", "ended") == 1
    await worker.recreate_session(session.id)
    assert value(worker.figures, "sandlot_sessions_opened_total", "base", "recreated") == 1


async def test_the_pool_is_counted(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=1, min=1))
    figures = worker.figures
    await eventually(lambda: value(figures, "sandlot_sandboxes_made_total", "base", "made") == 1)
    assert observed(figures, "sandlot_sandbox_make_seconds", "base") == 1
    await worker.create_session(CreateSession())
    assert observed(figures, "sandlot_pool_claim_seconds", "base") == 1


async def test_disks_history_and_machine_are_watched(scene: Scene, data_dir: Path) -> None:
    worker = await scene.start()
    figures = worker.figures
    await eventually(lambda: value(figures, "sandlot_disk_free_bytes", "data") > 0)
    assert value(figures, "sandlot_disk_size_bytes", "data") > value(
        figures, "sandlot_disk_free_bytes", "data"
    )
    await worker.create_session(CreateSession())
    await asyncio.sleep(0.05)
    assert value(figures, "sandlot_history_lag_seconds") > 0  # it gathers events for a moment
    await eventually(lambda: value(figures, "sandlot_history_lag_seconds") == 0)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("the sandbox's container ended with exit code 137", "ended"),
        ("the sandbox's container is gone", "gone"),
        ("its container was exited when the worker started", "gone"),
        ("it did not answer, and was given up on request", "unresponsive"),
        ("protocol abuse: more than 300 connections at once", "quarantined"),
        ("the sandbox's agent broke the protocol: a frame of 0 bytes", "quarantined"),
        ("the sandbox's agent has ended", "ended"),
        ("its limits could not be set: no", "other"),
    ],
)
def test_causes_of_losses(reason: str, cause: str) -> None:
    assert cause_of(reason) == cause


def test_the_reasons_are_those_of_the_code() -> None:
    """The causes are read from words, so the words must stay where they are raised."""
    sources = Path(__file__).parents[3] / "src/sandlot"
    for file, words in (
        ("providers/docker/end_watcher.py", "the sandbox's container ended"),
        ("providers/docker/end_watcher.py", "the sandbox's container is gone"),
        ("domain/recovery.py", "its container was"),
        ("worker/sessions/opening.py", "it did not answer"),
        ("providers/link/link.py", "protocol abuse: "),
        ("providers/link/link.py", "the sandbox's agent failed the handshake"),
        ("providers/e2b/carrier.py", "the sandbox's agent has ended"),
        ("providers/e2b/keeper.py", "E2B has ended the sandbox"),
        ("providers/link/mux.py", "the sandbox's agent broke the protocol"),
    ):
        assert words in (sources / file).read_text(encoding="utf-8"), (file, words)
