from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.config.registry.loading import KINDS, load_registry
from sandlot.config.registry.recipes import RecipeDefaults, bytes_of_size, seconds_of_duration
from sandlot.config.registry.yaml_files import MAX_FILE_BYTES
from sandlot.domain.capacity.limits import DEFAULT_CEILINGS, Limits
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.environment import Tier
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.domain.policy.policy import Ruling
from sandlot.domain.workspaces.setup import Setup

SHIPPED = {"base", "slim", "gvisor", "python", "data-science", "node", "code"}
DEFAULTS = RecipeDefaults(PoolPolicy(4, 1, 9), idle_timeout_s=100, lifetime_s=200)


def declare(folder: Path, kind: str, text: str, name: str = "mine.yaml") -> Path:
    file = folder / kind / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def complaint(folder: Path) -> str:
    with pytest.raises(InvalidRequest) as raised:
        load_registry(folder, defaults=DEFAULTS)
    return raised.value.message


def test_the_shipped_registry() -> None:
    registry = load_registry(defaults=DEFAULTS)
    assert set(registry.recipes) == SHIPPED
    built_on_demand = [registry.recipes[name] for name in ("python", "data-science", "node", "code")]
    assert {recipe.pool.size for recipe in built_on_demand} == {0}, (
        "no server starts with their images missing"
    )
    base, slim, gvisor = (registry.recipes[name] for name in ("base", "slim", "gvisor"))
    assert base.environment.limits == Limits()
    assert base.pool == DEFAULTS.pool, "the settings' pool is the default environment's"
    assert slim.pool.size == slim.pool.min == 0
    assert (gvisor.environment.tier, gvisor.environment.image) == (Tier.RUNSC, "sandlot/base")
    assert gvisor.pool.size == gvisor.pool.min == 0
    assert (base.idle_timeout_s, base.lifetime_s) == (100, 200)
    assert {entry.kind for entry in registry.catalogue.tools} == {"tool"}
    assert json.dumps([dict(entry.spec) for entry in registry.catalogue.tools])
    agent = registry.catalogue.agents[0]
    assert set(agent.spec["tools"]) <= {entry.name for entry in registry.catalogue.tools}


def test_a_folder_of_ones_own_adds_and_replaces(tmp_path: Path) -> None:
    declare(
        tmp_path,
        "environments",
        """
name: data
description: with numpy
image: mine/data:1
limits: {memory: 2g, cpus: 2, pids: 512, tmp: 128m, shm: 64m, open_files: 4096}
idle_timeout: 10m
lifetime: never
pool: {size: 3}
""",
    )
    declare(tmp_path, "environments", "{name: slim, description: other, image: mine/slim}", "slim.yml")
    registry = load_registry(tmp_path, defaults=DEFAULTS)
    data = registry.recipes["data"]
    assert data.environment.limits == Limits(2 * 1024**3, 2, 512, 128 * 1024**2, 64 * 1024**2, 4096)
    assert (data.idle_timeout_s, data.lifetime_s, data.pool) == (600, None, PoolPolicy(3, 1, 9))
    assert registry.recipes["slim"].environment.image == "mine/slim"
    assert registry.recipes["slim"].pool == PoolPolicy(0, 0, 9), "the settings' pool is not for others"
    assert {e.name for e in registry.catalogue.environments} == SHIPPED | {"data"}


def test_s3_ceilings_of_an_environment_stand_before_the_servers(tmp_path: Path) -> None:
    text = "{name: big, description: d, image: i, limits: {memory: 8g}, max_limits: {memory: 16g, pids: 300}}"
    declare(tmp_path, "environments", text)
    recipes = load_registry(tmp_path, defaults=DEFAULTS).recipes
    assert recipes["big"].ceilings == replace(DEFAULT_CEILINGS, memory_bytes=16 * 1024**3, pids=300)
    assert recipes["base"].ceilings == DEFAULT_CEILINGS
    below = "{name: odd, description: d, image: i, limits: {memory: 8g}, max_limits: {memory: 4g}}"
    declare(tmp_path, "environments", below)
    with pytest.raises(InvalidRequest, match="max_limits"):
        load_registry(tmp_path, defaults=DEFAULTS)


def test_s3_an_environment_may_have_more_than_the_servers_ceiling(tmp_path: Path) -> None:
    declare(tmp_path, "environments", "{name: big, description: d, image: i, limits: {memory: 8g}}")
    ceilings = load_registry(tmp_path, defaults=DEFAULTS).recipes["big"].ceilings
    assert ceilings == replace(DEFAULT_CEILINGS, memory_bytes=8 * 1024**3)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: a\ndescription: b\nimage: [", "line 3"),
        ("name: a\ndescription: b", "image"),
        ("name: A b\ndescription: b\nimage: c", "name"),
        ("name: a\ndescription: b\nimage: c\ntier: weak", "tier"),
        ("name: a\ndescription: b\nimage: c\nimagination: d", "imagination"),
        ("name: a\ndescription: b\nimage: c\nlimits: {memory: lots}", "limits.memory"),
        ("name: a\ndescription: b\nimage: c\nlimits: {memory: 1m}", "memory_bytes"),
        ("name: a\ndescription: b\nimage: c\nlimits: {cpus: .nan}", "JSON"),
        ("name: a\ndescription: b\nimage: c\nidle_timeout: soon", "idle_timeout"),
        ("name: a\ndescription: b\nimage: c\nidle_timeout: 900d", "idle_timeout"),
        ("name: a\ndescription: b\nimage: c\npool: {size: 1, min: 2}", "min ≤ size ≤ max"),
        ("name: a\ndescription: b\nimage: c\nimage: d", "line 4"),
        ("name: a\ndescription: b\nimage: c\n1: d", "line 4"),
        ("name: 2024-01-01\ndescription: b\nimage: c", "JSON"),
        ("- a\n- b", "whole file"),
        ("", "whole file"),
        ("name: !!python/object/apply:os.system ['true']\ndescription: b\nimage: c", "line 1"),
        ("x: &x [a, a]\ny: [*x, *x]", "alias"),
        ("a: " + "[" * 5000, "deep"),
        ("\x00", "YAML"),
    ],
)
def test_a_complaint_names_the_file_and_the_place(tmp_path: Path, text: str, place: str) -> None:
    file = declare(tmp_path, "environments", text)
    message = complaint(tmp_path)
    assert str(file) in message
    assert place in message


def test_a_file_has_a_bounded_size(tmp_path: Path) -> None:
    declare(tmp_path, "prompts", "name: a\ndescription: b\ntext: " + "x" * MAX_FILE_BYTES)
    assert "bytes" in complaint(tmp_path)


def test_one_name_twice_in_one_folder(tmp_path: Path) -> None:
    declare(tmp_path, "prompts", "{name: a, description: b, text: c}", "one.yaml")
    declare(tmp_path, "prompts", "{name: a, description: b, text: c}", "two.yaml")
    assert "one.yaml" in complaint(tmp_path)


def test_an_agent_names_what_exists(tmp_path: Path) -> None:
    declare(tmp_path, "agents", "{name: a, description: b, environment: base, tools: [bash, telepathy]}")
    message = complaint(tmp_path)
    assert "tools.1" in message
    assert "telepathy" in message


ENVIRONMENT = "{{name: mine, description: b, image: c, policy: {policy}}}"


@pytest.mark.parametrize(
    ("given", "record"), [("", False), (", record: false", False), (", record: true", True)]
)
def test_an_environment_may_record_its_sessions(tmp_path: Path, given: str, record: bool) -> None:
    declare(tmp_path, "environments", f"{{name: mine, description: b, image: c{given}}}")
    registry = load_registry(tmp_path, defaults=RecipeDefaults())
    assert registry.recipes["mine"].record is record
    shown = {environment.name: environment.record for environment in registry.catalogue.environments}
    assert shown["mine"] is record


def test_gateways_and_injected_secrets_of_an_environment(tmp_path: Path) -> None:
    head = "name: mine\ndescription: b\nimage: c\n"
    gateways = (
        "gateways:\n  openai:\n    upstream: https://api.openai.com\n    secret: openai\n"
        '    env: {OPENAI_BASE_URL: "{gateway}/v1"}\n'
    )
    declare(tmp_path, "environments", head + gateways + "inject: [github]\n")
    recipe = load_registry(tmp_path, defaults=RecipeDefaults()).recipes["mine"]
    [gateway] = recipe.gateways
    assert (gateway.secret, str(gateway.upstream)) == ("openai", "https://api.openai.com")
    assert gateway.variables == {"OPENAI_BASE_URL": "http://gateway.sandlot/openai/v1"}
    assert recipe.inject == ("github",)
    for wrong, message in (
        (gateways.replace("secret:", "secrets:"), "gateways.openai"),
        (gateways.replace("https", "http"), "over https only"),
        (gateways.replace("openai:", "pypi:"), "package cache"),
        ("inject: [Github]", "inject.0"),
    ):
        declare(tmp_path, "environments", head + wrong)
        assert message in complaint(tmp_path)


def test_an_environment_names_a_policy(tmp_path: Path) -> None:
    declare(tmp_path, "environments", ENVIRONMENT.format(policy="strict"))
    declare(
        tmp_path,
        "policies",
        "{name: strict, description: b, otherwise: deny, rules: [{name: a, ruling: allow, program: ls}]}",
    )
    registry = load_registry(tmp_path, defaults=DEFAULTS)
    policy = registry.recipes["mine"].policy
    assert policy is not None
    assert (policy.name, policy.otherwise) == ("strict", Ruling.DENY)
    shown = {environment.name: environment.policy for environment in registry.catalogue.environments}
    assert shown == dict.fromkeys(SHIPPED) | {"mine": "strict"}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{name: a, description: b, rules: [], otherwhise: deny}", "Did you mean 'otherwise'?"),
        ("{name: a, description: b, rules: [{name: c, ruling: deny, progam: d}]}", "Did you mean 'program'?"),
        ("{name: a, description: b, rules: [{name: c, ruling: deny}]}", "exactly one of program"),
        ("{name: a, description: b, rules: [], not_understood: allow}", "not_understood"),
    ],
)
def test_a_policy_is_read_strictly(tmp_path: Path, policy: str, message: str) -> None:
    file = declare(tmp_path, "policies", policy)
    found = complaint(tmp_path)
    assert str(file) in found
    assert message in found


def test_an_environment_names_a_policy_that_exists(tmp_path: Path) -> None:
    declare(tmp_path, "environments", ENVIRONMENT.format(policy="validaton"))
    assert "Did you mean 'validation'?" in complaint(tmp_path)


def test_a_tools_parameters_are_a_schema(tmp_path: Path) -> None:
    declare(
        tmp_path,
        "tools",
        "{name: a, description: b, operation: exec, parameters: {properties: {x: {type: 7}}}}",
    )
    assert "parameters.properties.x.type" in complaint(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    assert "does not exist" in complaint(tmp_path / "nowhere")
    assert "has none of" in complaint(tmp_path)


def test_every_schema_names_what_is_required() -> None:
    for kind in KINDS:
        schema = json.loads((Path(__file__).parents[3] / f"registry/schema/{kind}.json").read_text())
        assert schema["additionalProperties"] is False
        assert {"name", "description"} <= set(schema["required"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512m", 512 * 1024**2), ("1G", 1024**3), ("1.5k", 1536), ("64MiB", 64 * 1024**2), (7, 7)],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert bytes_of_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("30m", 1800), ("1h", 3600), ("2d", 172800), ("90s", 90), (5, 5), ("never", None)]
)
def test_durations(text: str | float, expected: float | None) -> None:
    assert seconds_of_duration(text) == expected


@given(st.text())
def test_any_text_is_a_value_or_our_error(text: str) -> None:
    for convert in (bytes_of_size, seconds_of_duration):
        try:
            convert(text)
        except SandlotError:
            continue


def test_what_new_workspaces_start_from(tmp_path: Path) -> None:
    start = "name: mine\ndescription: d\nimage: i\n"
    seed = "snp_" + "0" * 32
    for text, wanted in {
        "": (None, None),
        "setup: |\n  echo one\n  echo two\n": (Setup("echo one\necho two\n", 600), None),
        "setup: 'true'\nsetup_timeout_s: 5": (Setup("true", 5), None),
        f"seed: {seed}": (None, seed),
    }.items():
        declare(tmp_path, "environments", start + text)
        environment = load_registry(tmp_path, defaults=DEFAULTS).recipes["mine"].environment
        assert (environment.setup, environment.seed) == wanted
    for text, why in {
        f"seed: {seed}\nsetup: 'true'": "cannot both be given",
        "setup_timeout_s: 5": "no meaning without setup",
        "setup: ' '": "must be a script for bash",
        "setup: [a]": "setup: .* is not of type 'string'",
        "setup: 'true'\nsetup_timeout_s: 0": "setup_timeout_s",
        "seed: latest": "seed: 'latest' does not match",
        "set_up: 'true'": "Did you mean 'setup'",
    }.items():
        declare(tmp_path, "environments", start + text)
        assert re.search(why, complaint(tmp_path)), (text, complaint(tmp_path))
