"""Compares a cell, by our SDK and by E2B's, with the same cell on a bare kernel of the host, alternately.

Needs an image with kernels (`sandlot images build code`) and `.venv-e2b`. Cells are paced like those of an AI
agent: back-to-back cells would only measure how the sandbox's core is throttled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.code.bare import bare_kernel
from bench.rig import Bar, ProcessorTime, p50, p99, progress, report_bars
from bench.server import Served, serving
from sandlot import AsyncClient, AsyncSession
from sandlot.domain.e2b.names import key_for_e2b

CODE, VALUE = "1+1", "2"
PACE_S = 0.1
WARM_UP = 5
MAX_ADDED_MS = 15
MAX_FIRST_MS = 50
E2B_PYTHON = Path(".venv-e2b/bin/python")
# A new session's kernel and its pool's next sandbox must not compete with the cell that is measured.
SETTLE_S = 3.0


class E2BCells:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def timed(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return float(await self._said())

    async def _said(self) -> bytes:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).strip()


@asynccontextmanager
async def e2b_cells(served: Served) -> AsyncIterator[E2BCells]:
    assert served.api_key is not None
    program = str(Path(__file__).with_name("e2b_cells.py"))
    process = await asyncio.create_subprocess_exec(
        E2B_PYTHON, program, served.url, key_for_e2b(served.api_key), CODE, VALUE,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n", "E2B's SDK did not start"
        yield E2BCells(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def timed(session: AsyncSession) -> float:
    begin = time.perf_counter()
    result = await session.code.run(CODE)
    spent = time.perf_counter() - begin
    assert result.text == VALUE, result
    return spent * 1000


async def first_cells(client: AsyncClient, served: Served, sessions: int) -> list[float]:
    """The first cell of each new session, whose sandbox was warm."""
    spent = []
    for _ in range(sessions):
        await served.wait_warm(1, "code")
        async with client.create("code") as session:
            spent.append(await timed(session))
        await asyncio.sleep(SETTLE_S)
    return spent


async def measure(image: str, tier: str, rounds: int, sessions: int) -> dict[str, float]:
    before = ProcessorTime.now()
    samples: dict[str, list[float]] = {"bare": [], "sdk": [], "e2b": []}
    key = f"bench-{secrets.token_hex(16)}"
    with tempfile.TemporaryDirectory() as registry:
        declare(Path(registry), image, tier)
        async with serving(registry_dir=registry, api_key=key) as served, served.client() as client:
            first = await first_cells(client, served, sessions)
            async with bare_kernel() as bare, client.create("code") as session, e2b_cells(served) as e2b:
                for number in range(rounds + WARM_UP):
                    once = {
                        "sdk": await timed(session),
                        "bare": await bare.timed(CODE, VALUE),
                        "e2b": await e2b.timed(),
                    }
                    for name, spent in once.items() if number >= WARM_UP else ():
                        samples[name].append(spent)
                    await asyncio.sleep(PACE_S)
    figures = {f"{name}_ms": p50(values) for name, values in samples.items()}
    figures |= {f"{name}_p99_ms": p99(values) for name, values in samples.items()}
    return figures | {"first_ms": p50(first), "stolen": ProcessorTime.now().stolen_since(before)}


def declare(registry: Path, image: str, tier: str) -> None:
    """A registry whose environment for code has a warm sandbox. JSON is YAML."""
    (registry / "environments").mkdir()
    code = {
        "contexts": ["python"], "tier": tier, "limits": {"memory": "1g", "cpus": 1},
        "pool": {"size": 1, "min": 1, "max": 1},
    }  # fmt: skip
    for name, more in (("base", {}), ("code", code)):
        body = {"name": name, "description": "x", "image": image, **more}
        (registry / "environments" / f"{name}.yaml").write_text(json.dumps(body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--image", default="sandlot/code")
    parser.add_argument("--tier", default="runc")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=7)
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.image, arguments.tier, arguments.rounds, arguments.sessions))
    progress(json.dumps(figures))
    return report_bars(bars(figures), as_json=arguments.json, **figures)


def bars(figures: dict[str, float]) -> list[Bar]:
    bare, first = figures["bare_ms"], figures["first_ms"]
    found = []
    for name in ("sdk", "e2b"):
        spent = figures[f"{name}_ms"]
        wanted = f"{bare:.1f} + {MAX_ADDED_MS} ms"
        found.append(Bar(f"a cell, {name}", f"{spent:.1f} ms", wanted, spent <= bare + MAX_ADDED_MS))
    found.append(Bar("the first cell, warm", f"{first:.1f} ms", f"{MAX_FIRST_MS} ms", first <= MAX_FIRST_MS))
    return found


if __name__ == "__main__":
    sys.exit(main())
