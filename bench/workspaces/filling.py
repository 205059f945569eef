"""The workspace that is measured: many files with random content, written inside the sandbox."""

from __future__ import annotations

from sandlot import AsyncSession

WRITE = """
import os
files, size = {files}, {size}
for folder in range(0, files, 100):
    os.makedirs(f"data/{{folder}}", exist_ok=True)
    for name in range(folder, min(folder + 100, files)):
        with open(f"data/{{folder}}/{{name}}.bin", "wb") as file:
            file.write(os.urandom(size))
"""
MIB = 1024 * 1024


async def fill(session: AsyncSession, *, files: int, megabytes: int) -> None:
    program = WRITE.format(files=files, size=megabytes * MIB // files)
    result = await session.run("python3 -", stdin=program, timeout_s=600)
    assert result.exit_code == 0, result.output
    assert (await session.run("sync", timeout_s=300)).exit_code == 0
