"""The clients of the chaos run on the service in memory, with sandboxes that are lost under them: what they write
down is accepted, and a client that lies about what it did is found out.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from bench.chaos.answers import to_listed
from bench.chaos.checker import check
from bench.chaos.clients import SEEDED_BUGS, ChaosClient
from bench.chaos.history import LOG, Ending, Event, History, Recorder, read

from sandlot.domain.errors import SandboxLost
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import first_workspace_of
from sandlot.testing import FakeSandlot
from sandlot.testing.fake import Invocation, Reply

OPERATIONS = 800  # and the tags of creates
AT_THE_END = 999.0
FOUND_BY = {"double-run": "I2", "lost-ack": "I2", "two-sandboxes": "I1"}


def grep(invocation: Invocation) -> Reply:
    """``grep -nx LINE``, which the fake does not have."""
    wanted = invocation.words[-1]
    lines = invocation.stdin.decode().split()
    found = [f"{number}:{line}\n" for number, line in enumerate(lines, 1) if line == wanted]
    return Reply(stdout="".join(found))


async def history_of(path: Path, bug: str | None) -> Path:
    fake = FakeSandlot()
    fake.on("grep", grep)
    fake.on("sleep", delay_s=0.02)
    services = {"c1": fake.service, "c2": fake.service}
    began = time.monotonic()
    with path.open("w") as file:
        recorder = Recorder(file)
        clients = [
            ChaosClient(
                number, services, recorder, lambda: time.monotonic() - began, seed=7, bug=bug, pace_s=0.02
            )
            for number in range(4)
        ]

        def over() -> bool:
            return recorder.numbers > OPERATIONS

        async def lose_some() -> None:
            chance = random.Random(7)
            while not over():
                await asyncio.sleep(0.1)
                if sessions := (await fake.service.list_sessions()).sessions:
                    fake.lose(chance.choice(sessions).id)

        await asyncio.gather(lose_some(), *(client.work(over) for client in clients))
        rows = []
        for session in (await fake.service.list_sessions()).sessions:
            rows.append(to_listed(session))
            try:
                result = await fake.service.execute(session.id, ExecRequest(command=f"cat {LOG}"))
            except SandboxLost as error:
                lost = error.details["loss"]["generation"]
                number = recorder.next_number()
                recorder.add(Event("invoke", AT_THE_END, op=number, do="get", session=session.id))
                recorder.add(Event("ok", AT_THE_END, op=number, generation=lost, state="lost", loss=lost))
                continue
            recorder.add(
                Event(
                    "inside",
                    AT_THE_END,
                    session=session.id,
                    generation=session.generation,
                    lines=tuple(result.stdout.decode().split()),
                )
            )
        boxes = {row.sandbox: "running" for row in rows if row.sandbox is not None}
        ending = Ending(
            listed={"c1": tuple(rows)},
            directory={row.id: row.sandbox for row in rows},
            workspaces={row.id: first_workspace_of(row.sandbox) for row in rows if row.sandbox is not None},
            containers={"w": boxes},
            volumes={"w": tuple(boxes)},
            warm={"w": 0},
        )
        recorder.add(Event("end", AT_THE_END, ending=ending))
    return path


async def test_honest_clients(tmp_path: Path) -> None:
    path = await history_of(tmp_path / "history.jsonl", None)
    assert check(read(path)) == []
    story = History.of(read(path))
    # Every kind of operation came up, and losses were met.
    done = {operation.call.do for operation in story.operations if operation.ok}
    assert done >= {"create", "run", "read", "delete", "list", "recreate"}
    assert any(operation.end and operation.end.code == "sandbox_lost" for operation in story.operations)


@pytest.mark.parametrize("bug", SEEDED_BUGS)
async def test_a_seeded_bug_is_found(tmp_path: Path, bug: str) -> None:
    path = await history_of(tmp_path / "history.jsonl", bug)
    assert FOUND_BY[bug] in {violation.rule for violation in check(read(path))}
