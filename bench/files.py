"""Compares file transfers with `docker cp`: a large file in and out, and many small files as one archive.

Also reports the worker's memory.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.rig import DOCKER, open_provider, p50, progress, rss_bytes, run_on_tiers, spec_for
from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Tier
from sandlot.providers.base import Sandbox

PIECE = 1024 * 1024
# The transfer runs inside the sandbox, within its limits; `docker cp` runs outside, with the whole
# machine. Both get two cores, so that the comparison is not about cgroup settings.
LIMITS = Limits(cpus=2.0, memory_bytes=1024 * MIB)


async def pieces_of(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


async def send(sandbox: Sandbox, path: Path) -> float:
    begin = time.perf_counter()
    await sandbox.files.write("ours", pieces_of(path))
    return time.perf_counter() - begin


async def fetch(sandbox: Sandbox, path: Path) -> float:
    begin = time.perf_counter()
    with path.open("wb") as file:
        async for piece in sandbox.files.read("ours"):
            file.write(piece)
    return time.perf_counter() - begin


async def docker_copy(source: str, destination: str) -> float:
    begin = time.perf_counter()
    await asyncio.to_thread(
        subprocess.run, [DOCKER, "cp", "-q", source, destination], check=True, capture_output=True
    )
    return time.perf_counter() - begin


def small_files(count: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(count):
            info = tarfile.TarInfo(f"d{number // 100}/f{number}")
            data = f"small file {number}\n".encode() * 10
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def measure(tier: Tier, megabytes: int, rounds: int, files: int) -> dict[str, float]:
    async with open_provider() as provider:
        with tempfile.TemporaryDirectory(prefix="sandlot-bench-") as folder:
            source, back = Path(folder) / "source", Path(folder) / "back"
            with source.open("wb") as file:
                for _ in range(megabytes):
                    file.write(os.urandom(MIB))
            sandbox = await provider.create(spec_for(tier, LIMITS))
            target = f"sandlot-{sandbox.id}:/sandbox/workspace/theirs"
            await sandbox.files.write("warm", b"x")
            before, highest = rss_bytes(), 0
            ins, outs, docker_ins, docker_outs = [], [], [], []
            for number in range(rounds):
                progress(f"{tier}: {megabytes} MiB, round {number + 1} of {rounds}")
                docker_ins.append(await docker_copy(str(source), target))
                ins.append(await send(sandbox, source))
                docker_outs.append(await docker_copy(target, str(back)))
                outs.append(await fetch(sandbox, back))
                highest = max(highest, rss_bytes())
            assert subprocess.run(["cmp", source, back], check=False).returncode == 0
            tar = small_files(files)

            async def tar_pieces() -> AsyncIterator[bytes]:
                for at in range(0, len(tar), PIECE):
                    yield tar[at : at + PIECE]

            begin = time.perf_counter()
            await sandbox.files.write_archive("small", tar_pieces())
            archive_in = time.perf_counter() - begin
            begin = time.perf_counter()
            size = sum([len(piece) async for piece in sandbox.files.read_archive("small")])
            archive_out = time.perf_counter() - begin
            assert size > files * 512
    return {
        "in_mb_s": megabytes / p50(ins),
        "docker_cp_in_mb_s": megabytes / p50(docker_ins),
        "in_ratio": p50(docker_ins) / p50(ins),
        "out_mb_s": megabytes / p50(outs),
        "docker_cp_out_mb_s": megabytes / p50(docker_outs),
        "out_ratio": p50(docker_outs) / p50(outs),
        "memory_growth_mb": (highest - before) / MIB,
        "archive_files": files,
        "archive_in_s": archive_in,
        "archive_out_s": archive_out,
    }


if __name__ == "__main__":
    asyncio.run(run_on_tiers(__doc__, measure, megabytes=1024, files=10_000, rounds=3))
