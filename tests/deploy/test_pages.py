"""The pages about fleets name only what exists: variables, files, headings, commands, timings."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sandlot.config.fleet_settings import FleetSettings
from sandlot.config.variable_names import SHARED_KEYS
from sandlot.fleet.access import LEEWAY_S, token_times
from sandlot.fleet.coordinator.host import STOP_WITHIN_S
from tests.deploy.fronted import ROOT
from tests.deploy.test_compose import OF_COMPOSE, settings_variables

PAGES = ["docs/howto/scaling.md", "docs/howto/fleet-operations.md", "deploy/README.md"]
CLIENT_VARIABLES = {"SANDLOT_URL", "SANDLOT_API_KEY"}


@pytest.mark.parametrize("page", PAGES)
def test_variables_mean_something(page: str) -> None:
    named = set(re.findall(r"SANDLOT_[A-Z_]+", (ROOT / page).read_text()))
    assert named <= settings_variables() | OF_COMPOSE | CLIENT_VARIABLES | set(SHARED_KEYS)


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text)
    assert links
    for path, anchor in links:
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text()), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"\bsandlot (fleet \w+|worker|coordinator|images \w+|doctor|run|serve)\b", text))
    assert named
    for command in named:
        asked = [sys.executable, "-m", "sandlot", *command.split(), "--help"]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0, command


def test_seconds_are_those_of_the_code() -> None:
    text = (ROOT / "docs/howto/fleet-operations.md").read_text()
    fields = FleetSettings.model_fields
    lease_s, lost_after_s = fields["lease_s"].default, fields["lost_after_s"].default
    assert f"`SANDLOT_LEASE_S={lease_s:g}` and `SANDLOT_LOST_AFTER_S={lost_after_s:g}`" in text
    assert f"Start the new process within {lost_after_s:g} s (`SANDLOT_LOST_AFTER_S`)" in text
    assert f"after {lease_s + lost_after_s:g} s as if it were gone" in text
    assert f"good for {token_times(lost_after_s).lifetime_s:g} s" in text
    assert f"and {LEEWAY_S:g} s longer" in text
    assert STOP_WITHIN_S == 10
    assert "gives calls ten seconds" in text


def test_keys_are_made_on_one_machine() -> None:
    """O11: a block that is run on every machine must not make keys: each worker would have its own."""
    text = (ROOT / "docs/howto/scaling.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    making = [block for block in blocks if "fleet keygen" in block or "redis/users" in block]
    assert len(making) == 1
    assert "systemctl" not in making[0]
    installing = next(block for block in blocks if "sandlot-worker.service" in block)
    assert "fleet-public-keys" in installing
    assert "private" not in installing
