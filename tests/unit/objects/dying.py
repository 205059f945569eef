"""A worker that dies at the n-th change of its object storage: ``dying.py STORE FOLDER SNAPSHOT BASE WHAT N``."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.worker.workspaces.objects.bucket.bucket import Bucket
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage


def die_at(last: int) -> None:
    counted = itertools.count(1)

    def counting(change: Any) -> Any:
        def counted_change(bucket: Bucket, what: Any, *more: Any) -> None:
            for each in what if isinstance(what, list) else [what]:
                if next(counted) == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                change(bucket, [each] if isinstance(what, list) else each, *more)

        return counted_change

    Bucket.put = counting(Bucket.put)  # type: ignore[method-assign]
    Bucket.delete = counting(Bucket.delete)  # type: ignore[method-assign]


async def main(store: str, folder: str, snapshot: str, base: str, what: str, last: str) -> None:
    options = ObjectOptions(parse_location(f"file://{store}"), grace_s=0.0 if what == "collect" else 1000.0)
    storage = ObjectStorage(options)
    await storage.open()
    die_at(int(last))
    if what == "collect":
        await storage.collect()
        await storage.collect()
    else:
        await storage.save("tenant", snapshot, Path(folder), b"", base or None)
    await storage.close()


asyncio.run(main(*sys.argv[1:]))
