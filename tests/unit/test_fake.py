"""The fake's own features: its shell, its scripts, its clock. That it keeps the contract, the service suite says."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import InvalidRequest, NotFound, SandboxLost, SessionEnded, Unavailable
from sandlot.domain.execution import ExecRequest, ExecResult, Verdict
from sandlot.domain.session import NEVER, CreateSession, SessionChange
from sandlot.testing import FakeSandlot, FakeService, Invocation, Reply
from sandlot.testing.eventually import eventually


async def run(service: FakeService, command: str, *, stdin: bytes | None = None) -> ExecResult:
    opened = await service.create_session(CreateSession(thread="one"))
    return await service.execute(opened.session.id, ExecRequest(command=command, timeout_s=10), stdin)


# --- the shell ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("echo a  b", "a b\n"),
        ("echo -n a", "a"),
        ("echo 'a  b' \"c  d\" e\\ f", "a  b c  d e f\n"),
        ("X=1; echo $X ${X}2 '$X' \"$X\"", "1 12 $X 1\n"),
        ("X='a  b'; echo $X; echo \"$X\"", "a b\na  b\n"),
        ("X=' a b '; printf '<%s>' x$X; printf '<%s>' x\"$X\"", "<x><a><b><x a b >"),
        ("X=; printf '<%s>' $X end; printf '<%s>' \"$X\" end", "<end><><end>"),
        ("echo ${NONE:-default} ${NONE:-$HOME}", "default /workspace\n"),
        ("false; echo $?; true; echo $?", "1\n0\n"),
        ("true && echo yes || echo no; false && echo yes || echo no", "yes\nno\n"),
        ("! false && echo turned", "turned\n"),
        ("echo $(echo inner; echo more)", "inner more\n"),
        ("echo \"$(printf 'a\\n\\n')\"", "a\n"),
        ("(X=2; cd /tmp; pwd); pwd; echo [$X]", "/tmp\n/workspace\n[]\n"),
        ("(exit 3); echo $?", "3\n"),
        ("echo out >f; echo more >>f; cat f; cat <f", "out\nmore\nout\nmore\n"),
        ("nothing 2>/dev/null; echo $?", "127\n"),
        ("echo hidden >/dev/null; echo err 2>&1 >&2 | cat; echo shown", "err\nshown\n"),
        ("echo a | cat | wc -c", "2\n"),
        ("yes | head -c 4", "y\ny\n"),
        ("seq 3 | head -n 2; seq 2 3", "1\n2\n2\n3\n"),
        ("printf '%s-%d\\n' a 1 b 2; printf '%%\\101\\x42'", "a-1\nb-2\n%AB"),
        ("A=5 bash -c 'echo $A'; echo [$A]", "5\n[]\n"),
        ("test -e nothing; echo $?; [ a = a ] && [ 2 -gt 1 ] && [ ! -z x ] && echo holds", "1\nholds\n"),
        ("touch f; [ -f f ] && [ ! -d f ] && echo file", "file\n"),
        ("mkdir -p a/b; touch a/b/c .h; ls; ls a/b; ls -A", "a\nc\n.h\na\n"),
        ("mkdir d; mv d e; ls; rm -r e; ls", "e\n"),
        ("echo x >f; ln -s f l; cat l", "x\n"),
        ("whoami; id -u", "sandboxuser\n1000\n"),
        ("echo one; echo two # a comment\n# another\necho three", "one\ntwo\nthree\n"),
        ("echo a\\\nb", "ab\n"),
        ("read x; echo got $x; read y || echo end", "got word\nend\n"),
        ("cd /tmp && cd && pwd; echo ~", "/workspace\n/workspace\n"),
        ("X=~/a; echo $X; echo x >~/f; cat f", "/workspace/a\nx\n"),
        ("echo *.none what? [x] '*' \"*\" \\*", "*.none what? [x] * * *\n"),
        ("touch .h; echo *", "*\n"),
        ("bash -lc 'echo a'; echo 'echo b' | sh -s; echo '{a,b}' {} \"cost: $\"", "a\nb\n{a,b} {} cost: $\n"),
        ("echo x 1>&2 2>/dev/null; echo y >&1", "y\n"),
    ],
)
async def test_shell(command: str, stdout: str) -> None:
    result = await run(FakeService(), command, stdin=b"word\n")
    assert result.stdout.decode() == stdout, result.stderr


async def test_exported_and_not() -> None:
    result = await run(FakeService(), "export A=1; B=2; bash -c 'echo $A-$B'; env")
    lines = result.stdout.decode().splitlines()
    assert lines[0] == "1-"
    assert "A=1" in lines
    assert "B=2" not in lines


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("no-such-thing x", 127, "no-such-thing: command not found"),
        ("./missing", 127, "No such file"),
        ("/etc/passwd", 126, "Permission denied"),
        ("cat missing", 1, "missing: No such file or directory"),
        ("cat /etc/shadow", 1, "Permission denied"),
        ("echo x >/etc/new", 1, "Permission denied"),
        ("cd /nowhere", 1, "No such file"),
        ("rm folder", 1, "Is a directory"),
        ("for i in 1 2; do echo $i; done", 2, "does not know `for'"),
        ("sleep 1 &", 2, "background"),
        ("echo 'open", 2, "unexpected EOF"),
        ("echo $((1+1))", 2, "arithmetic"),
        ("cat <<END", 2, "<<"),
        ("&& echo", 2, "syntax error"),
        ("echo a &&", 2, "syntax error"),
        ("(" * 1000, 2, "nested"),
        ("echo )", 2, "unexpected token"),
        ("if true; then echo x; fi", 2, "does not know `if'"),
        ("while true; do echo x; done", 2, "does not know `while'"),
        ("case a in a) echo x;; esac", 2, "does not know `case'"),
        ("{ echo x; }", 2, "does not know `{'"),
        ("[[ a == a ]]", 2, "does not know `[['"),
        ("f() { echo x; }", 2, "unexpected token"),
        ("((1+1))", 2, "arithmetic"),
        ("echo `pwd`", 2, "use $( )"),
        ('echo "in `pwd`"', 2, "use $( )"),
        ("echo {a,b} x{1..3}", 2, "braces"),
        ("echo $'a\\n'", 2, "does not know"),
        ("echo $! $-", 2, "does not know `$!'"),
        ("echo ${HOME%/*}", 2, "bad substitution"),
        ("touch a.txt; echo *.txt", 2, "does not expand `*.txt'"),
        ("touch a.txt; cat /workspace/[a-c].tx?", 2, "does not expand"),
        ("cat <<<text", 2, "<<"),
        ("echo x 3>f", 2, "0, 1 and 2 alone"),
        ("echo x >&-", 2, "0, 1 and 2 alone"),
        ("diff <(echo a) f", 2, "syntax error"),
        ("echo -e 'a\\tb'", 2, "the fake's echo knows -n"),
        ("printf '%5d' 1", 2, "the fake's printf knows"),
        ("env A=1 pwd", 2, "the fake's env knows"),
        ("read -p ask x", 2, "the fake's read knows"),
        ("seq 1 2 9", 2, "the fake's seq knows"),
        ("[ a = a -a b = b ]", 2, "the fake's [ knows"),
        ("id -un", 2, "the fake's id knows"),
        ("ls -l", 2, "the fake's ls knows"),
        ("mkdir -m 700 d", 2, "the fake's mkdir knows"),
        ("rm -i f", 2, "the fake's rm knows"),
        ("mv a b folder", 2, "the fake's mv knows"),
        ("ln f g", 2, "the fake's ln knows"),
        ("touch -d now f", 2, "the fake's touch knows"),
        ("stty -a", 2, "the fake's stty knows"),
        ("wc -w", 2, "the fake's wc knows"),
        ("bash script.sh", 2, "the fake's bash knows"),
        ("set -e", 127, "set: command not found"),
    ],
)
async def test_shell_says_what_is_wrong(command: str, code: int, said: str) -> None:
    service = FakeService()
    await run(service, "mkdir folder")
    result = await run(service, command)
    assert (result.exit_code, result.verdict) == (code, Verdict.NONZERO)
    assert said in result.stderr.decode()


async def test_disk_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.testing.fake.tree.MAX_FILE_BYTES", 100_000)
    result = await run(FakeService(), "yes >full")
    assert (result.exit_code, b"No space left" in result.stderr) == (1, True)


# --- scripts --------------------------------------------------------------------------------------


async def test_scripted_reply() -> None:
    fake = FakeSandlot()
    fake.on("pytest -q", stdout="1 passed\n", stderr="warned\n", exit_code=0)
    result = await run(fake.service, "cd /tmp && pytest -q tests && pytest")
    assert (result.stdout, result.exit_code) == (b"1 passed\n", 127)
    assert result.stderr.startswith(b"warned\n")
    assert [call.command for call in fake.calls] == ["cd /tmp && pytest -q tests && pytest"]


async def test_newest_rule_counts_and_may_replace_a_command() -> None:
    fake = FakeSandlot()
    fake.on("whoami", stdout="first")
    fake.on("whoami", stdout="second")
    fake.on("whoami --help", stdout="third")
    assert (await run(fake.service, "whoami; whoami --help; whoami")).stdout == b"secondthirdsecond"


async def test_rules_are_met_by_words_not_letters() -> None:
    fake = FakeSandlot()
    fake.on("git", stdout="git!")
    assert (await run(fake.service, "gitk")).exit_code == 127
    assert (await run(fake.service, "git  'status'")).stdout == b"git!"


async def test_whole_text_that_the_shell_cannot_read() -> None:
    fake = FakeSandlot()
    loop = 'for i in 1 2; do\n  echo "it\'s $i"\ndone'
    fake.on(loop, stdout="it's 1\nit's 2\n")
    assert (await run(fake.service, loop)).stdout == b"it's 1\nit's 2\n"


async def test_handler_sees_the_command_and_its_input() -> None:
    seen: list[Invocation] = []

    async def handler(invocation: Invocation) -> Reply:
        seen.append(invocation)
        return Reply(stdout=invocation.stdin.upper(), exit_code=4)

    fake = FakeSandlot()
    fake.on("tool", handler)
    result = await run(fake.service, "cd /tmp; echo text | A=1 tool --flag 'two words'")
    assert (result.stdout, result.exit_code) == (b"TEXT\n", 4)
    (invocation,) = seen
    assert (invocation.words, invocation.cwd) == (("tool", "--flag", "two words"), "/tmp")
    assert invocation.env["A"] == "1"


async def test_plain_handler() -> None:
    fake = FakeSandlot()
    fake.on("count", lambda invocation: Reply(stdout=str(len(invocation.words))))
    assert (await run(fake.service, "count a b")).stdout == b"3"


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ({"oom": True, "exit_code": 137}, Verdict.OOM),
        ({"disk_full": True, "exit_code": 1}, Verdict.DISK_FULL),
    ],
)
async def test_scripted_verdicts(reply: dict[str, int], verdict: Verdict) -> None:
    fake = FakeSandlot()
    fake.on("heavy", **reply)
    assert (await run(fake.service, "heavy")).verdict is verdict


async def test_scripted_delay_meets_the_timeout() -> None:
    fake = FakeSandlot()
    fake.on("slow", delay_s=60)
    session = (await fake.service.create_session(CreateSession())).session
    result = await fake.service.execute(session.id, ExecRequest(argv=("slow",), timeout_s=0.1))
    assert result.verdict is Verdict.TIMEOUT


async def test_calls_are_counted_once_per_exec() -> None:
    fake = FakeSandlot()
    session = (await fake.service.create_session(CreateSession())).session
    request = ExecRequest(argv=("echo", "two words"), exec_id="same")
    for _ in range(3):
        await fake.service.execute(session.id, request)
    assert [(call.session_id, call.command) for call in fake.calls] == [(session.id, "echo 'two words'")]


# --- clock, loss, close ---------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_idle_and_lifetime_by_the_given_clock() -> None:
    clock = Clock()
    service = FakeService(clock=clock)
    idle = (await service.create_session(CreateSession(idle_timeout_s=100, lifetime_s=1000))).session
    clock.now += 99
    await service.files(idle.id).write("f", b"1")
    clock.now += 99
    assert (await service.get_session(idle.id)).last_active_at == 1099
    clock.now += 1
    with pytest.raises(SessionEnded, match="idle") as caught:
        await service.get_session(idle.id)
    assert caught.value.details["reason"] == "idle"
    old = (await service.create_session(CreateSession(idle_timeout_s=NEVER, lifetime_s=50))).session
    clock.now += 50
    assert (await service.list_sessions()).sessions == ()
    with pytest.raises(SessionEnded, match="lifetime"):
        await service.execute(old.id, ExecRequest(command="true"))


async def test_running_exec_holds_an_idle_session() -> None:
    clock = Clock()
    service = FakeService(clock=clock)
    session = (await service.create_session(CreateSession(idle_timeout_s=10))).session
    await service.start_exec(session.id, ExecRequest(command="sleep 60", exec_id="long"))
    clock.now += 100
    assert (await service.get_session(session.id)).state == "active"
    await service.kill_exec(session.id, "long")
    await service.get_exec(session.id, "long", wait_s=5)
    clock.now += 100
    with pytest.raises(SessionEnded):
        await service.get_session(session.id)


async def test_idle_time_counts_from_the_end_of_an_exec() -> None:
    clock = Clock()
    service = FakeService(clock=clock)
    session = (await service.create_session(CreateSession(idle_timeout_s=10))).session
    await service.start_exec(session.id, ExecRequest(command="sleep 0.05"))
    clock.now += 100

    async def over() -> bool:
        return (await service.health()).calls_under_way == 0

    await eventually(over)
    clock.now += 9
    assert (await service.get_session(session.id)).last_active_at == 1100
    clock.now += 1
    with pytest.raises(SessionEnded):
        await service.get_session(session.id)


async def test_never_can_be_forbidden() -> None:
    service = FakeService(allow_never=False)
    with pytest.raises(InvalidRequest):
        await service.create_session(CreateSession(lifetime_s=NEVER))
    session = (await service.create_session(CreateSession())).session
    with pytest.raises(InvalidRequest):
        await service.update_session(session.id, SessionChange(idle_timeout_s=NEVER))


async def test_own_environments() -> None:
    limits = Limits(pids=64)
    recipe = Recipe(
        Environment("data", "example/data", limits=limits), description="for data", lifetime_s=None
    )
    service = FakeService(recipes=[recipe])
    (info,) = (await service.catalogue()).environments
    assert (info.name, info.limits, info.lifetime_s) == ("data", limits, None)
    assert (await service.create_session(CreateSession(environment="data"))).session.limits == limits
    with pytest.raises(InvalidRequest, match="Available: data"):
        await service.create_session(CreateSession())


async def test_loss_reaches_who_waits() -> None:
    fake = FakeSandlot()
    session = (await fake.service.create_session(CreateSession())).session
    running = asyncio.create_task(fake.service.execute(session.id, ExecRequest(command="sleep 60")))
    await asyncio.sleep(0)

    async def watched() -> None:
        async with fake.service.files(session.id).watch(".") as changes:
            async for _ in changes:
                pass

    watching = asyncio.create_task(watched())
    await asyncio.sleep(0.01)
    fake.lose(session.id, "pulled the plug")
    for waiting in (running, watching):
        with pytest.raises(SandboxLost, match="pulled the plug"):
            await asyncio.wait_for(waiting, 5)


async def test_loss_from_another_thread() -> None:
    fake = FakeSandlot()
    session = (await fake.service.create_session(CreateSession())).session
    running = asyncio.create_task(fake.service.execute(session.id, ExecRequest(command="sleep 60")))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(fake.lose, session.id)
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(running, 5)


async def test_losing_what_is_not_there() -> None:
    with pytest.raises(NotFound):
        FakeSandlot().lose("ses_none")


async def test_close_ends_everything() -> None:
    service = FakeService()
    session = (await service.create_session(CreateSession())).session
    running = asyncio.create_task(service.execute(session.id, ExecRequest(command="yes >/dev/null")))
    await asyncio.sleep(0.01)
    await service.close()
    with pytest.raises(Unavailable):
        await running
    with pytest.raises(Unavailable):
        await service.create_session(CreateSession())
    assert not (await service.health()).ready


async def test_unread_stream_without_a_limit_stays_bounded() -> None:
    service = FakeService()
    session = (await service.create_session(CreateSession())).session
    request = ExecRequest(command="yes", output_limit=None, timeout_s=0.5, exec_id="flood")
    await service.start_exec(session.id, request)
    status = await service.get_exec(session.id, "flood", wait_s=10)
    assert status.result is not None
    assert status.result.exited.output_bytes > len(status.result.output)
    assert len(status.result.output) < 2 * 1024 * 1024


async def test_slow_reader_without_a_limit_misses_nothing() -> None:
    service = FakeService()
    session = (await service.create_session(CreateSession())).session
    request = ExecRequest(command="seq 400000", output_limit=None)
    result = await (await service.start_exec(session.id, request)).result()
    assert result.output == "".join(f"{i}\n" for i in range(1, 400_001)).encode()


# --- the front ------------------------------------------------------------------------------------


def test_needs_neither_pytest_nor_a_server() -> None:
    check = (
        "import sys, sandlot.testing; sandlot.testing.FakeSandlot().client(); "
        "print(sorted({'pytest', 'aiodocker', 'fastapi', 'pydantic'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "[]\n"


async def test_async_client() -> None:
    fake = FakeSandlot()
    fake.on("tool", stdout="scripted")
    async with fake.client() as client, await client.create() as session:
        assert (await session.run("tool")).output == "scripted"
        fake.lose(session, "unplugged")
        with pytest.raises(SandboxLost, match="unplugged"):
            await session.run("true")


def test_sync_client() -> None:
    fake = FakeSandlot()
    fake.on("tool", stdout="scripted")
    with fake.sync_client() as client, client.create() as session:
        assert session.run("tool").output == "scripted"
        fake.lose(session)
        with pytest.raises(SandboxLost):
            session.run("true")
