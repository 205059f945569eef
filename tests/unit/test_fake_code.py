"""The fake's code: scripts, the very small Python, and policies over cells."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import Busy, Conflict, PolicyDenied
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.testing import CellCall, CellReply, FakeSandlot, FakeService

POLICY = {
    "name": "p",
    "otherwise": "allow",
    "rules": [{"name": "no-python", "ruling": "deny", "program": "python3", "reason": "runs Python"}],
}


async def value_of(code: str) -> str:
    async with FakeSandlot().client() as client:
        result = await (await client.create()).code.run(code)
        return result.text or result.stdout or str(result.error)


@pytest.mark.parametrize(
    ("code", "gives"),
    [
        ("1 + 2 * 3", "7"),
        ("'a' + \"b\"", "'ab'"),
        ("[1, 'x', 2.5]", "[1, 'x', 2.5]"),
        ("x = 7\nx //= 2\nx % 2 == 1", "True"),
        ("len('abc') + sum([1, 2])", "6"),
        ("print('a', 1)", "a 1\n"),
        ("raise ValueError('no')", "ValueError: no"),
        ("1 < 'a'", "TypeError: '<' not supported between instances of 'int' and 'str'"),
        ("x", "NameError: name 'x' is not defined"),
        ("(", "SyntaxError: '(' was never closed (<unknown>, line 1)"),
        ("None", "None"),
    ],
)
async def test_the_very_small_python(code: str, gives: str) -> None:
    assert await value_of(code) == gives


@pytest.mark.parametrize(
    "code", ["import os", "open('x')", "[x for x in y]", "def f(): pass", "a.b", "eval('1')"]
)
async def test_it_says_what_it_does_not_know(code: str) -> None:
    assert "FakeSandlot.on_cell()" in await value_of(code)


async def test_scripts_come_first_and_the_newest_wins() -> None:
    fake = FakeSandlot()
    fake.on_cell("train", value="old")
    fake.on_cell("train(", value={"text/plain": "new", "image/png": b"png"}, stdout="out\n", stderr="err\n")

    async def answer(call: CellCall) -> CellReply:
        await asyncio.sleep(0)
        return CellReply(value=f"{call.language} {call.context} {call.env['A']}", error=("E", "why"))

    fake.on_cell("handled", answer)
    async with fake.client() as client:
        session = await client.create()
        result = await session.code.run("model.train()")
        assert (result.text, result.png, result.stdout, result.stderr) == ("new", b"png", "out\n", "err\n")
        handled = await session.code.run("handled", context="r", env={"A": "b"})
        assert (handled.text, str(handled.error), handled.ok) == ("r r b", "E: why", False)
        other = await session.code.run("1", context="javascript")
        assert "no javascript" in str(other.error)
    assert [call.command for call in fake.calls] == ["model.train()", "handled", "1"]


async def test_contexts_are_counted_and_are_what_they_were() -> None:
    async with FakeSandlot().client() as client:
        session = await client.create()
        await session.code.create("python", id="mine")
        with pytest.raises(Conflict):
            await session.code.create("r", id="mine")
        for _ in range(15):
            await session.code.create()
        with pytest.raises(Busy, match="16 contexts"):
            await session.code.create()


async def test_a_policy_decides_about_code_as_about_the_program_that_runs_it() -> None:
    policy = CommandPolicy.of(POLICY)
    service = FakeService(recipes=[Recipe(Environment("base", "image"), policy=policy)])
    async with FakeSandlot(service).client() as client:
        session = await client.create()
        own = await session.code.create("python", id="mine")
        for context in ("python", own):
            with pytest.raises(PolicyDenied):
                await session.code.run("1", context=context)
        await session.code.run("x", context="r")
        with pytest.raises(PolicyDenied):
            await session.code.run("true; python3 x.py", context="bash")
