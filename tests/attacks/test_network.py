"""70, 72, 74, 76, 77, 79: a sandbox has a loopback and no way out of it, whatever it asks and whoever listens."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.testing.directory_suite.redis_server import free_port
from sandlot.testing.eventually import eventually
from tests.attacks.canaries import Watch
from tests.docker.test_walls import all_of, refused

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

HERE = Path(__file__).parent / "inside"
WALLS = Path(__file__).parents[1] / "docker" / "inside"
LISTEN = """
import socket, sys, threading
word = sys.argv[1].encode()
places = [(socket.AF_INET, ("0.0.0.0", 4321)), (socket.AF_INET6, ("::", 4322)), (socket.AF_UNIX, "\\0of-the-neighbour")]
def serve(listener):
    while True:
        listener.accept()[0].sendall(word)
for family, place in places:
    listener = socket.socket(family)
    listener.bind(place)
    listener.listen()
    threading.Thread(target=serve, args=(listener,)).start()
print("listening", flush=True)
"""
COME = """
import socket
for family, place in [
    (socket.AF_INET, ("127.0.0.1", 4321)), (socket.AF_INET6, ("::1", 4322)), (socket.AF_UNIX, "\\0of-the-neighbour")
]:
    try:
        with socket.socket(family) as s:
            s.settimeout(2)
            s.connect(place)
            print(s.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""


@contextmanager
def answering(watch: Watch) -> Iterator[int]:
    """On every address of the host, whoever comes is given a canary, by TCP and UDP."""
    port = free_port()
    word = watch.canaries.plant("a listener of the host").encode()
    with (
        socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        loop = asyncio.get_running_loop()
        udp.bind(("", port))
        udp.setblocking(False)
        tcp.setblocking(False)

        def come() -> None:
            connection, _ = tcp.accept()
            with connection:
                connection.send(word)

        def ask() -> None:
            _, sender = udp.recvfrom(100)
            udp.sendto(word, sender)

        loop.add_reader(tcp, come)
        loop.add_reader(udp, ask)
        try:
            yield port
        finally:  # a closed socket's number would go on being watched, whoever has it next
            loop.remove_reader(tcp)
            loop.remove_reader(udp)


def addresses() -> list[str]:
    """Of this machine, its own loopback left out: a sandbox has one of those as well."""
    listed = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return [address for address in listed if not ipaddress.ip_address(address).is_loopback]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seen(watch: Watch, sandbox: Sandbox) -> dict[str, object]:
    """What every way gave, tried once."""
    for folder, name in ((WALLS, "attacks.py"), (HERE, "ways_out.py")):
        await sandbox.files.write(name, (folder / name).read_bytes())
    with answering(watch) as port:
        with socket.create_connection(("127.0.0.1", port), 5) as own:  # it does answer
            own.setblocking(False)
            reached = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(own, 100), 10)
        assert reached.startswith(b"canary-")
        argv = ("python3", "ways_out.py", str(port), *addresses())
        result = await sandbox.run(ExecRequest(argv=argv, timeout_s=180))
    assert result.exit_code == 0, result
    outcomes: dict[str, object] = json.loads(result.stdout)
    return outcomes


async def test_70_there_is_no_way_out(seen: dict[str, object]) -> None:
    assert (seen["interfaces"], seen["routes"]) == (["lo"], [])
    refused(seen, *all_of(seen, "tcp ", "udp ", "icmp "))


async def test_72_nobody_resolves_names(seen: dict[str, object]) -> None:
    refused(seen, *all_of(seen, "dns ", "name "))


async def test_74_metadata_of_a_cloud_is_not_reached(seen: dict[str, object]) -> None:
    refused(seen, *all_of(seen, "metadata "))


async def test_76_the_host_is_not_reached(seen: dict[str, object]) -> None:
    refused(seen, *all_of(seen, "host "))


async def test_79_names_cannot_be_spoofed(seen: dict[str, object]) -> None:
    refused(seen, *all_of(seen, "spoof "))


async def test_77_a_neighbour_is_not_reached(watch: Watch, sandbox: Sandbox) -> None:
    """It listens on all that it has, by TCP and by a name in the kernel: only itself gets there."""
    word = watch.canaries.plant("a neighbour's listener")
    listening = await watch.neighbour.start(ExecRequest(argv=("python3", "-c", LISTEN, word)))

    async def reaches_itself() -> bool:
        script = f"python3 - <<'END' | grep -c canary-\n{COME}\nEND"
        ran = await watch.neighbour.run(ExecRequest(command=script, timeout_s=30))
        return ran.stdout == b"3\n"

    await eventually(reaches_itself, 60, "the neighbour reaches itself in three ways")
    ran = await sandbox.run(ExecRequest(argv=("python3", "-c", COME), timeout_s=60))
    assert set(ran.stdout.decode().split()) == {"ConnectionRefusedError"}, ran
    await watch.neighbour.kill(listening.exec_id)
