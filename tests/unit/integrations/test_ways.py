"""Commands in sandboxes that cannot do all that is asked of them: no bash, or an older agent."""

from __future__ import annotations

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.options import ExecOptions
from sandlot.client.result import Result
from sandlot.domain.errors import Unsupported
from sandlot.integrations.toolbox.commands import run_in_shell
from sandlot.testing.fake import FakeService


@pytest.mark.parametrize(
    ("shells", "merges", "used"),
    [
        (True, True, ("main", True)),
        (True, False, ("main", False)),
        (False, True, (None, True)),
        (False, False, (None, False)),
    ],
)
async def test_a_command_is_run_as_far_as_the_sandbox_can(
    shells: bool, merges: bool, used: tuple[str | None, bool]
) -> None:
    async with AsyncClient(service=FakeService()) as client, client.create() as session:

        async def run(options: ExecOptions) -> Result:
            if (options["shell"] and not shells) or (options["merge_output"] and not merges):
                raise Unsupported("not here")
            return await session.run(f"echo {options['shell']} {options['merge_output']}", **options)

        options: ExecOptions = {"shell": "main", "merge_output": True}
        result = await run_in_shell(session, "exec-1", options, run)
        assert result.stdout == "{} {}\n".format(*used)


async def test_what_no_way_can_do_is_told() -> None:
    async with AsyncClient(service=FakeService()) as client, client.create() as session:

        async def run(options: ExecOptions) -> Result:
            raise Unsupported("not here")

        with pytest.raises(Unsupported):
            await run_in_shell(session, "exec-1", {"shell": "main", "merge_output": True}, run)
