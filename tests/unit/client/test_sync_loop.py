"""The loop behind a blocking client: after a fork, dropped without a word, and called from itself."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from sandlot import AsyncClient, Client
from sandlot.client.sync.background import BackgroundLoop

# A child that hangs is ended, and the test with it, by the alarm.
FORK = """
import gc, os, signal, sys, threading
from sandlot import Client

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        work()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

client = Client(sys.argv[1])
session = client.create()
"""
FIRST_CALLS = """
def first_calls():
    heard, together = [], threading.Barrier(6)
    def call():
        together.wait()
        heard.append(session.run("echo child").output)
    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == ["child\\n"] * 6, heard

for _ in range(5):
    in_child(first_calls)
"""
CLOSED_IN_THE_CHILD = """
def close():
    client.health()
    client.close()
    try:
        client.health()
    except RuntimeError as error:
        assert "closed" in str(error)
        os._exit(7)

in_child(close)
in_child(client.close)
"""
CLOSED_IN_THE_PARENT = """
other = Client(sys.argv[1])
other.close()

def call():
    try:
        other.health()
    except RuntimeError as error:
        assert "closed" in str(error)
    else:
        os._exit(1)

in_child(call)
"""
LEFT_IN_THE_CHILD = """
stream = session.stream("yes", output_limit=None)
next(stream)

def leave():
    global stream
    del stream
    gc.collect()

in_child(leave)
for _ in range(100):
    next(stream)
stream.close()
"""


@pytest.mark.parametrize(
    "script",
    [FIRST_CALLS, CLOSED_IN_THE_CHILD, CLOSED_IN_THE_PARENT, LEFT_IN_THE_CHILD],
    ids=["first-calls", "closed-in-the-child", "closed-in-the-parent", "left-in-the-child"],
)
def test_after_a_fork(server: Any, script: str) -> None:
    after = 'assert session.run("echo parent").output == "parent\\n"\nclient.close()\nprint("done")\n'
    command = [sys.executable, "-c", FORK + script + after, server.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


async def test_one_that_is_dropped_is_waited_for_by_nobody() -> None:
    """The collector may find it on the thread of an event loop, which has other things to do."""
    goes_on, ended = threading.Event(), threading.Event()

    async def last() -> None:
        try:
            await asyncio.to_thread(goes_on.wait)
        finally:
            ended.set()

    loop = BackgroundLoop(last)
    assert loop.run(asyncio.sleep(0, "alive")) == "alive"
    thread = loop._thread
    del loop
    gc.collect()
    assert not ended.is_set()
    goes_on.set()
    await asyncio.to_thread(thread.join, 20)
    assert ended.is_set()
    assert not thread.is_alive()


def test_work_with_the_client_behind(server: Any) -> None:
    async def ready(client: AsyncClient) -> bool:
        return (await client.health()).ready

    with Client(server.url) as client:
        assert client.call(ready)
        assert client.submit(ready).result(timeout=10)

        async def on_its_own_loop(_: AsyncClient) -> bool:
            return client.call(ready)

        with pytest.raises(RuntimeError, match="would deadlock"):
            client.submit(on_its_own_loop).result(timeout=10)
