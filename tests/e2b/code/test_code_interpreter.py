"""E2B's code interpreter SDK, unmodified, against the API on the fake, whose cells a test scripts."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from sandlot.api.app import create_app
from sandlot.api.e2b.options import E2bOptions
from sandlot.domain.e2b.names import key_for_e2b
from sandlot.domain.environment import Environment, Recipe
from sandlot.testing import FakeSandlot, FakeService
from sandlot.testing.fake.code.cells import CellCall, CellReply
from tests.e2b.clients import NEWEST, Found, checks_in, run, run_javascript
from tests.e2b.method_table import assert_all_called
from tests.service.served import served_app

KEY = "the-key-of-the-fake-0123456789"
PROGRAMS = {
    "sync": "code/code_calls.py",
    "async": "code/code_calls.py",
    "javascript": "code/code_calls.cjs",
}
PIE = {"type": "pie", "title": "Shares", "elements": [{"label": "a", "angle": 360.0, "radius": 1.0}]}
CASES = [(form, check) for form, program in PROGRAMS.items() for check in checks_in(program)]


def scripted() -> FakeService:
    recipes = [Recipe(Environment(name, f"sandlot/{name}:latest")) for name in ("base", "code")]
    fake = FakeSandlot(FakeService(recipes=recipes))
    fake.on_cell(
        "show everything",
        displays=[{"image/png": b"a picture", "text/plain": "<Figure>", "e2b/chart": PIE}],
        value={
            "text/html": "<table></table>",
            "text/markdown": "| a |",
            "text/latex": "$a$",
            "image/svg+xml": "<svg/>",
            "application/json": {"rows": [1, 2]},
            "application/x-own": "own",
            "e2b/data": {"n": [1, 2]},
        },
    )
    fake.on_cell("fails loudly", stdout="before\n", stderr="trouble\n", error=("ValueError", "it was wrong"))
    fake.on_cell("much output", stdout="x" * 10_000_000)
    fake.on_cell("tell MINE", handler=lambda call: CellReply(call.env.get("MINE", "")))
    fake.on_cell("tell language", handler=lambda call: CellReply(call.language.value))
    fake.on_cell("slow", handler=slow)
    return fake.service


async def slow(call: CellCall) -> CellReply:
    await asyncio.sleep(600)
    return CellReply("too late")


@cache
def found(form: str) -> Found:
    async def main() -> Found:
        service = scripted()
        app = create_app(service, api_key=KEY, allowed_hosts=None, e2b=E2bOptions(b"s" * 32))
        async with served_app(app) as url:
            arguments = (PROGRAMS[form], url, key_for_e2b(KEY))
            if form == "javascript":
                result = await asyncio.to_thread(run_javascript, *arguments)
            else:
                result = await asyncio.to_thread(run, NEWEST, *arguments, form)
        await service.close()
        return result

    return asyncio.run(main())


@pytest.mark.parametrize(("form", "check"), CASES)
def test_code_interpreter(form: str, check: str) -> None:
    found(form).assert_passed(check)


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_each_method_that_works_is_called(flavour: str) -> None:
    assert_all_called(__file__, flavour, [found(flavour)])
