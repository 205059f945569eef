"""A Redis with a replica, and sentinels that watch over both: real processes on free ports."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from sandlot.testing.directory_suite.redis_server import RedisServer, free_port

NAME = "fleet"
QUORUM = 2
DOWN_AFTER_MS = 1000
# A sentinel asks who replicates every ten seconds, and does nothing for thirty after it was held up itself.
START_SECONDS = 60.0


class Watched:
    """``password``: the sentinels' own."""

    def __init__(self, password: str | None = None) -> None:
        self.password = password
        self.primary = RedisServer("--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(
            *("--replicaof", f"127.0.0.1 {self.primary.port}", "--repl-diskless-sync-delay", "0")
        )
        self.ports = [free_port() for _ in range(3)]
        self._folder = Path(tempfile.mkdtemp(prefix="sandlot-test-sentinels-"))
        self._sentinels: list[subprocess.Popen[bytes]] = []

    @property
    def environ(self) -> dict[str, str]:
        return {
            "SANDLOT_SENTINELS": ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "SANDLOT_SENTINEL_NAME": NAME,
        }

    def start(self) -> None:
        self.primary.start()
        self.replica.start()
        self._wait_synced()
        for port in self.ports:
            config = self._folder / f"{port}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._folder}\nprotected-mode no\n"
                f"sentinel monitor {NAME} 127.0.0.1 {self.primary.port} {QUORUM}\n"
                f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {NAME} 5000\n"
                + (
                    f"requirepass {self.password}\nsentinel sentinel-pass {self.password}\n"
                    if self.password
                    else ""
                )
            )
            self._sentinels.append(
                subprocess.Popen(
                    ["redis-server", str(config), "--sentinel"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        deadline = time.monotonic() + START_SECONDS
        while not all(map(self._sees_all, self.ports)):
            assert time.monotonic() < deadline, "the sentinels do not find the replica and each other"
            time.sleep(0.1)

    def _wait_synced(self) -> None:
        """Before anybody watches: what a sentinel finds first, it believes for ten seconds."""
        deadline = time.monotonic() + START_SECONDS
        with Redis(port=self.replica.port, decode_responses=True) as replica:
            while replica.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline, "the replica does not find its primary"
                time.sleep(0.05)

    def _sentinel(self, port: int) -> Redis:
        return Redis(port=port, password=self.password, decode_responses=True)

    def _sees_all(self, port: int) -> bool:
        with contextlib.suppress(RedisConnectionError), self._sentinel(port) as sentinel:
            master = sentinel.sentinel_master(NAME)
            synced = all(replica["master-link-status"] == "ok" for replica in sentinel.sentinel_slaves(NAME))
            return bool(master["num-slaves"] == 1 and master["num-other-sentinels"] == 2 and synced)
        return False

    def master_port(self) -> int:
        with self._sentinel(self.ports[0]) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(NAME)[1])

    def signal_sentinel(self, number: int, how: signal.Signals) -> None:
        self._sentinels[number].send_signal(how)

    def remove(self) -> None:
        for sentinel in self._sentinels:
            sentinel.send_signal(signal.SIGKILL)
            sentinel.wait()
        for redis in (self.replica, self.primary):
            redis.remove()
        shutil.rmtree(self._folder, ignore_errors=True)
