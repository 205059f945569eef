"""A real Prometheus as a process of its own, with the rules of ``deploy/prometheus`` in a hurry: the same
expressions and thresholds, but what waits or looks back minutes there takes seconds here.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from sandlot.testing.directory_suite.redis_server import free_port
from sandlot.testing.eventually import eventually

RULES = Path(__file__).parents[2] / "deploy/prometheus"
PROMETHEUS = shutil.which("prometheus")
# Long enough that a rate has several scrapes to go by.
WINDOW = "8s"
WAIT = "1s"
STARTED_WITHIN_S = 30.0
FIRES_WITHIN_S = 40.0
CLEARS_WITHIN_S = 60.0


def in_a_hurry(rules: str) -> str:
    rules = re.sub(r"\[\d+m\]", f"[{WINDOW}]", rules)
    return re.sub(r"for: \d+m\b", f"for: {WAIT}", rules)


class Prometheus:
    """``targets``: a job's name → its URL and its key."""

    def __init__(self, targets: Mapping[str, tuple[str, str]]) -> None:
        assert PROMETHEUS is not None
        self.folder = Path(tempfile.mkdtemp(prefix="sandlot-test-prometheus-"))
        self.url = f"http://127.0.0.1:{free_port()}"
        for path in RULES.glob("*.rules.yml"):
            (self.folder / path.name).write_text(in_a_hurry(path.read_text()))
        jobs = []
        for job, (url, key) in targets.items():
            (self.folder / f"{job}-key").write_text(key)
            jobs.append(
                {
                    "job_name": job,
                    "authorization": {"credentials_file": str(self.folder / f"{job}-key")},
                    "static_configs": [{"targets": [url.removeprefix("http://")]}],
                }
            )
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["*.rules.yml"],
            "scrape_configs": jobs,
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.fired: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        assert PROMETHEUS is not None
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    PROMETHEUS,
                    f"--config.file={self.folder}/prometheus.yml",
                    f"--storage.tsdb.path={self.folder}/data",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        await eventually(self._is_ready, STARTED_WITHIN_S, lambda: (self.folder / "log").read_text())

    async def _is_ready(self) -> bool:
        try:
            async with httpx.AsyncClient() as http:
                return (await http.get(f"{self.url}/-/ready")).status_code == 200
        except httpx.HTTPError:
            return False

    async def ask(self, path: str, **parameters: str) -> Any:
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=20)
        return answer.raise_for_status().json()["data"]

    async def value(self, query: str) -> float:
        """The sum of what a query finds."""
        found = await self.ask("query", query=query)
        return sum(float(each["value"][1]) for each in found["result"])

    async def firing(self) -> set[str]:
        alerts = (await self.ask("alerts"))["alerts"]
        now = {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}
        self.fired |= now
        return now

    async def fires(self, *alerts: str, within_s: float = FIRES_WITHIN_S) -> None:
        async def all_fire() -> bool:
            return set(alerts) <= await self.firing() | (self.fired & set(alerts))

        await eventually(all_fire, within_s, lambda: f"{alerts} fire; so far {self.fired}")

    async def clears(self, *alerts: str) -> None:
        async def none_fires() -> bool:
            return not set(alerts) & await self.firing()

        await eventually(none_fires, CLEARS_WITHIN_S, f"{alerts} are over")

    async def settles(self) -> None:
        """No alert fires."""
        seen: set[str] = set()

        async def quiet() -> bool:
            seen.clear()
            seen.update(await self.firing())
            return not seen

        await eventually(quiet, CLEARS_WITHIN_S, lambda: f"still firing: {seen}")

    async def clean(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, 30)
        shutil.rmtree(self.folder)


def alerts_of(name: str) -> set[str]:
    groups = yaml.safe_load((RULES / name).read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}
