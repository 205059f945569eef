"""A release is of one version everywhere, and the workflow that publishes it holds no secret."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import sandlot

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github/workflows/release.yml"


def test_the_agent_and_the_changelog_have_the_packages_version() -> None:
    agent = (ROOT / "agent/internal/link/link.go").read_text()
    assert re.findall(r'^var Version = "(.*)"$', agent, re.MULTILINE) == [sandlot.__version__]
    versions = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions[0] == sandlot.__version__


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_the_workflow_publishes_what_was_checked_and_holds_no_secret() -> None:
    text = WORKFLOW.read_text()
    workflow = yaml.safe_load(text)
    assert "secrets." not in text
    assert workflow["permissions"] == {}
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert publish["needs"] == "build"
    steps = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    assert "make release" in steps
