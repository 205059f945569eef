"""A command policy is a guard rail and not a wall: known bypasses pass it, and the sandbox stops them."""

from __future__ import annotations

import pytest

from sandlot.bash.reading import read_text
from sandlot.client.async_client import AsyncClient
from sandlot.config.packaged import packaged_folder
from sandlot.config.registry.policies import shipped_policy
from sandlot.config.registry.yaml_files import read_yaml
from sandlot.domain.errors import PolicyDenied
from sandlot.domain.policy.deciding import decide
from sandlot.domain.policy.policy import Ruling
from tests.service.workers import worker

BYPASSES = {
    "a script": "printf 'rm -rf /etc\\necho x > /etc/made\\n' > x.sh; bash x.sh",
    "another language": "python3 -c 'import shutil; shutil.rmtree(\"/etc\", ignore_errors=True)'",
    "a link": "ln -s / root; rm -rf root/etc",
    "a copy": 'cp "$(command -v rm)" x; ./x -rf /etc',
}


@pytest.mark.parametrize("bypass", BYPASSES.values(), ids=BYPASSES)
def test_the_policy_sees_nothing_wrong_in_a_bypass(bypass: str) -> None:
    assert decide(shipped_policy("validation"), read_text(bypass)).ruling is Ruling.ALLOW


@pytest.mark.docker
async def test_the_policy_lets_bypasses_through_and_the_sandbox_holds() -> None:
    document = read_yaml(packaged_folder("registry") / "policies" / "validation.yaml")
    mine = {**document, "name": "mine"}
    async with (
        worker(max_execs=4, policed=("policed", mine)) as service,
        AsyncClient(service=service) as client,
    ):
        session = await client.create("policed")
        with pytest.raises(PolicyDenied):
            await session.run("rm -rf /etc")
        before = (await session.run("ls /etc | wc -l; cat /etc/passwd")).stdout
        for bypass in BYPASSES.values():
            await session.run(bypass)
            assert (await session.run("ls /etc | wc -l; cat /etc/passwd")).stdout == before
        await session.delete()
