"""U1: a keyword argument that a method does not take is an error, which names the one that was meant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from sandlot import AsyncClient, AsyncSession, Client, Session
from sandlot.client.callbacks import OutputDispatcher
from sandlot.domain.execution import Channel, ExecRequest, Output
from sandlot.testing.fake import FakeService


@pytest.fixture
async def fake() -> AsyncIterator[FakeService]:
    service = FakeService()
    yield service
    await service.close()


@pytest.fixture
async def session(fake: FakeService) -> AsyncSession:
    return await AsyncClient(service=fake).create()


@pytest.fixture
def blocking(fake: FakeService) -> Iterator[Session]:
    with Client(service=fake) as client:
        yield client.create()


class TestSessions:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ({"enviroment": "gvisor"}, "Did you mean 'environment'?"),
            ({"Env": {}}, "Did you mean 'env'?"),
            ({"lifetime": 60}, "Did you mean 'lifetime_s'?"),
            ({"timeout": 60}, "use idle_timeout_s and lifetime_s for a session"),
            ({"template": "base"}, "the environment says"),
            ({"qqq": 1}, "unexpected keyword argument 'qqq'"),
        ],
    )
    async def test_create_and_thread(self, fake: FakeService, given: dict[str, Any], meant: str) -> None:
        client = AsyncClient(service=fake)
        with pytest.raises(TypeError, match=r"create\(\) got an unexpected") as refused:
            await client.create(**given)
        assert meant in str(refused.value)
        with pytest.raises(TypeError, match=r"thread\(\) got an unexpected") as refused:
            await client.thread("t", **given)
        assert meant in str(refused.value)
        assert not (await fake.list_sessions()).sessions

    def test_create_without_await(self, fake: FakeService) -> None:
        with Client(service=fake) as client, pytest.raises(TypeError, match="Did you mean 'environment'"):
            client.create(enviroment="gvisor")  # type: ignore[call-arg]

    def test_local_when_it_is_made_and_not_when_it_is_used(self) -> None:
        with pytest.raises(TypeError, match=r"local\(\) got .* 'pool_sise'. Did you mean 'pool_size'"):
            Client.local(pool_sise=3)
        with pytest.raises(TypeError, match="Did you mean 'keep_sessions'"):
            AsyncClient.local(keep_session=True)


class TestCommands:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ({"timeot": 1}, "Did you mean 'timeout'?"),
            ({"time_out_s": 1}, "Did you mean 'timeout_s'?"),
            ({"background": True}, "start() runs a command in the background"),
            ({"envs": {}}, "env={...}"),
            ({"workdir": "/"}, "cwd"),
        ],
    )
    async def test_run_stream_start_shell(
        self, fake: FakeService, session: AsyncSession, given: dict[str, Any], meant: str
    ) -> None:
        async def stream() -> None:
            async for _ in session.stream("true", **given):
                pass

        calls: list[Callable[[], Any]] = [
            lambda: session.run("true", **given),
            stream,
            lambda: session.start("true", **given),
            lambda: session.terminal(**given),
            lambda: session.shell().run("true", **given),
            lambda: session.client.run_in_thread("t", "true", **given),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="unexpected keyword argument") as refused:
                await call()
            assert meant in str(refused.value)
        assert fake.calls == []

    async def test_the_methods_without_callbacks_say_which_have_them(self, session: AsyncSession) -> None:
        with pytest.raises(TypeError, match=r"start\(\) got .*'on_stdout': only run\(\) and shell"):
            await session.start("true", on_stdout=print)  # type: ignore[call-arg]

    async def test_timeout_is_timeout_s(self, fake: FakeService, session: AsyncSession) -> None:
        assert (await session.run("sleep 20", timeout=0.05)).timed_out
        assert (await session.shell().run("sleep 20", timeout=0.05)).timed_out
        assert (await session.client.run_in_thread("t", "sleep 20", timeout=0.05)).timed_out
        await session.start("true", timeout=7)
        assert fake.calls[-1].request.timeout_s == 7
        with pytest.raises(TypeError, match="not both"):
            await session.run("true", timeout=1, timeout_s=1)
        job = await session.start("sleep 20")
        with pytest.raises(TimeoutError):
            await job.wait(timeout=0.05)
        with pytest.raises(TypeError, match="not both"):
            await job.wait(1, timeout=1)


class TestCallbacks:
    """What users of E2B and Daytona write: ``run(…, on_stdout=…, on_stderr=…)``."""

    async def test_text_comes_as_it_is_printed(self, fake: FakeService, session: AsyncSession) -> None:
        out: list[str] = []
        errors: list[str] = []

        async def on_stderr(text: str) -> None:
            errors.append(text)

        result = await session.run("echo a; echo b >&2; exit 3", on_stdout=out.append, on_stderr=on_stderr)
        assert ("".join(out), "".join(errors)) == ("a\n", "b\n")
        plain = await session.run("echo a; echo b >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, "a\n", "b\n")
        assert (result.session_id, result.generation) == (plain.session_id, plain.generation)
        shell = session.shell()
        await shell.run("X=kept")
        await shell.run("echo $X; cat", stdin="in", on_stdout=out.append)
        assert "".join(out) == "a\nkept\nin"

    async def test_a_character_is_not_cut_in_two(self, session: AsyncSession) -> None:
        first, second = "é".encode()[:1], "é".encode()[1:]
        out: list[str] = []
        request = ExecRequest(command="true")
        dispatcher = OutputDispatcher(session.info, request, out.append, None)
        dispatcher.dispatch(Output(Channel.STDOUT, 0, first))
        dispatcher.dispatch(Output(Channel.STDOUT, 1, second))
        assert out == ["é"]

    async def test_what_a_callback_raises_is_raised(self, session: AsyncSession) -> None:
        def fail(text: str) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await session.run("echo a", on_stdout=fail)

    def test_without_await_on_the_thread_that_called(self, blocking: Session) -> None:
        out: list[str] = []

        def on_stdout(text: str) -> None:
            out.append(text)
            out.append(blocking.run("echo inner").output)  # would wait for itself on the client's loop

        assert blocking.run("echo a", on_stdout=on_stdout, timeout=30).ok
        assert out == ["a\n", "inner\n"]
        assert blocking.shell().run("echo b", on_stdout=out.append).output == "b\n"

        async def never_awaited(text: str) -> None: ...

        with pytest.raises(TypeError, match="plain functions"):
            blocking.run("echo a", on_stdout=never_awaited)
