"""The receiver of docs/howto/webhooks.md is run as it stands, and gets deliveries, false and true."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path

import httpx

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.webhooks.attempts import Schedule
from sandlot.domain.webhooks.signing import signed_headers
from sandlot.domain.webhooks.webhook import Webhook
from tests.faults.rig import free_port
from tests.unit.webhooks.receiver import PATIENT, rig_in

PAGE = Path(__file__).parents[2] / "docs/howto/webhooks.md"


async def test_the_receiver(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    async with rig_in(tmp_path, PATIENT) as rig, httpx.AsyncClient() as client:
        webhook = await rig.create(url)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program),
            env={**os.environ, "WEBHOOK_SECRET": webhook.secret, "PORT": str(port)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            rig.record(1, 2)
            await rig.until_delivered(webhook, 2)
            for _ in range(2):
                line = await asyncio.wait_for(process.stdout.readline(), 20)
                assert re.fullmatch(rb"session\.ended ses_[0-9a-f]{32}\n", line)
            # Repeated, old, forged.
            body = b'{"type": "session.ended", "data": {"session_id": "ses_x"}}'
            assert await _sent(client, url, webhook, body) == 204
            assert await asyncio.wait_for(process.stdout.readline(), 20) == b"session.ended ses_x\n"
            assert await _sent(client, url, webhook, body) == 204
            assert await _sent(client, url, webhook, body, at=time.time() - 3600) == 401
            other = await rig.webhooks.create(OWNER, url, ["key.used"])
            assert await _sent(client, url, other, body) == 401
        finally:
            process.kill()
            await process.wait()
        assert await process.stdout.read() == b"", "nothing was handled twice"


async def _sent(
    client: httpx.AsyncClient, url: str, webhook: Webhook, body: bytes, at: float | None = None
) -> int:
    headers = signed_headers(webhook.secret, "msg_1", int(at or time.time()), body)
    return (await client.post(url, content=body, headers=headers)).status_code


def test_the_page_says_the_schedule() -> None:
    schedule = Schedule()
    waits = [schedule.delay_s(attempts, 0.5) for attempts in range(1, schedule.attempts)]
    words = ["5 s", "25 s", "2 min", "10 min", "52 min", "1 h", "1 h"]
    units = {"s": 1, "min": 60, "h": 3600}
    for wait, word in zip(waits, words, strict=True):
        assert wait is not None
        number, unit = word.split()
        assert int(wait // units[unit]) == int(number)
    text = " ".join(PAGE.read_text().split())
    assert f"tries {schedule.attempts} times over about 3 hours" in text
    assert f"after {', '.join(words[:-1])} and {words[-1]}" in text
