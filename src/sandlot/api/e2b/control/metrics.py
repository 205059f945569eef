"""What a sandbox uses, as E2B's SDKs ask for it."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from starlette.responses import Response

from sandlot.api.e2b.control.bodies import MetricBody
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.sessions import is_running, timestamp
from sandlot.api.responses.json import json_response
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.errors import InvalidRequest

# Over how long the share of the processor is measured.
_SHARE_OF_S: Final = 0.25


async def sandbox_metrics(call: ControlCall) -> Response:
    """One measurement, of now. What was before is not kept."""
    query = call.query("start", "end")
    session = await call.service.get_session(call.session_id)
    if not is_running(session):
        return json_response([])
    first = await call.service.get_usage(call.session_id)
    await asyncio.sleep(_SHARE_OF_S)
    usage = await call.service.get_usage(call.session_id)
    start, end = (_time(query.get(name), name) for name in ("start", "end"))
    if (start is not None and usage.measured_at < start) or (
        end is not None and usage.measured_at >= end + 1
    ):
        return json_response([])
    return json_response([metric_of(first, usage)])


def metric_of(first: SandboxUsage, usage: SandboxUsage) -> MetricBody:
    """``first``: an earlier measurement, which the share of the processor counts from."""
    passed_s = max(usage.measured_at - first.measured_at, 0.001)
    share = (usage.cpu_s - first.cpu_s) / passed_s / usage.cpus
    return MetricBody(
        timestamp=timestamp(usage.measured_at),
        timestamp_unix=int(usage.measured_at),
        cpu_count=max(1, math.ceil(usage.cpus)),
        cpu_used_pct=round(100 * min(max(share, 0.0), 1.0), 2),
        mem_used=usage.memory_bytes,
        mem_total=usage.memory_limit_bytes,
        mem_cache=0,
        disk_used=usage.disk_bytes or 0,
        disk_total=usage.disk_limit_bytes or 0,
    )


def _time(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidRequest(f"{name} is not a time in seconds: {text[:20]!r}.")
    return int(text)
