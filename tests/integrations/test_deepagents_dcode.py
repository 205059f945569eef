"""The provider for Deep Agents Code. dcode itself is an application and is not installed here: its contract is
written down below, and held against the real one where that is installed.
"""

from __future__ import annotations

import inspect

import pytest

from sandlot import Client
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.integrations.deepagents.dcode import SandlotProvider

pytestmark = pytest.mark.docker

CONTRACT = {
    "get_or_create": ["sandbox_id"],
    "delete": ["sandbox_id"],
    "aget_or_create": ["sandbox_id"],
    "adelete": ["sandbox_id"],
}


def keywords(method: object) -> list[str]:
    parameters = inspect.signature(method).parameters.values()  # type: ignore[arg-type]
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def test_it_has_the_contracts_methods() -> None:
    for name, wanted in CONTRACT.items():
        assert keywords(getattr(SandlotProvider, name))[: len(wanted)] == wanted


def test_the_contract_is_as_written_down_here() -> None:
    module = pytest.importorskip(
        "deepagents_code.integrations.sandbox_provider", reason="deepagents-code is not installed"
    )
    for name, wanted in CONTRACT.items():
        assert keywords(getattr(module.SandboxProvider, name)) == wanted
    assert module.SandboxProvider.metadata.fget(object()) is None
    registry = pytest.importorskip("deepagents_code.integrations.sandbox_registry")
    described = registry._provider_metadata(SandlotProvider(), "sandlot")
    assert (described.working_dir, described.supports_sandbox_id) == ("/workspace", True)


def test_a_provider_is_made_without_a_connection() -> None:
    """dcode makes one for a look at its metadata; SANDLOT_URL may be anything then."""
    assert SandlotProvider().metadata is None


async def test_a_sandbox_is_made_found_again_and_deleted(client: Client) -> None:
    provider = SandlotProvider(client)
    made = await provider.aget_or_create(environment="slim")
    assert (await made.aexecute("pwd; echo kept > note")).output == "/workspace\n"
    found = await provider.aget_or_create(sandbox_id=made.id)
    assert (await found.aexecute("cat note")).output == "kept\n"
    await provider.adelete(sandbox_id=made.id)
    await provider.adelete(sandbox_id=made.id)
    with pytest.raises(NotFound, match=made.id):
        await provider.aget_or_create(sandbox_id=made.id)


def test_a_parameter_that_does_not_exist_is_named(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="snapshot"):
        SandlotProvider(client).get_or_create(snapshot="x")  # type: ignore[call-arg]
