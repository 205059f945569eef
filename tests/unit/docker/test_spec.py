"""The container's spec is what was decided, to the letter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.spec import HostPaths, container_name, container_spec, resource_limits

TIERS = (Tier.RUNC, Tier.RUNSC)  # of Docker
GOLDEN = Path(__file__).parents[2] / "golden"
ID = "sbx_" + "0123456789abcdef" * 2


def build(tier: Tier = Tier.RUNC, limits: Limits | None = None, **changes: Any) -> dict[str, Any]:
    environment = Environment(name="default", image="sandlot/base", tier=tier, limits=limits or Limits())
    arguments: dict[str, Any] = {
        "spec": SandboxSpec(id=ID, environment=environment, labels={"session": "s1"}),
        "owner": "worker-1",
        "image_id": "sha256:1234",
        "paths": HostPaths(
            agent="/data/agent-1",
            link="/data/s/0123/link",
            etc={name: f"/data/s/0123/etc/{name}" for name in ("passwd", "group")},
        ),
        "workspace": {"Type": "volume", "Source": container_name(ID), "Target": "/sandbox"},
        "seccomp": "<profile>",
    } | changes
    return container_spec(arguments.pop("spec"), **arguments)


@pytest.mark.parametrize("tier", TIERS)
def test_spec_equals_the_golden_file(tier: Tier) -> None:
    golden = json.loads((GOLDEN / f"container-{tier}.json").read_text())
    assert build(tier) == golden


def test_a_callers_label_cannot_pass_for_ours() -> None:
    environment = Environment(name="default", image="sandlot/base")
    labels = {"owner": "x", "sandbox": "y", "../spec": "z"}
    body = build(spec=SandboxSpec(id=ID, environment=environment, labels=labels))
    assert body["Labels"]["sandlot.owner"] == "worker-1"
    assert body["Labels"]["sandlot.sandbox"] == ID
    assert body["Labels"]["sandlot.label.owner"] == "x"


def test_nothing_weakens_the_wall() -> None:
    for tier in TIERS:
        body = build(tier)
        host = body["HostConfig"]
        assert host["CapDrop"] == ["ALL"]
        assert set(host["CapAdd"]) == {"CHOWN", "SETUID", "SETGID", "KILL", "SETPCAP"}
        assert "no-new-privileges" in host["SecurityOpt"]
        assert host["ReadonlyRootfs"] is True
        assert host["NetworkMode"] == "none"
        assert host["Runtime"] == tier.value
        for name in ("Devices", "Binds", "PidMode", "UsernsMode", "UTSMode", "VolumesFrom", "GroupAdd"):
            assert name not in host
        binds = [mount for mount in host["Mounts"] if mount["Type"] == "bind"]
        assert all(mount["ReadOnly"] for mount in binds)
        # An image's own health check would be an exec into the sandbox.
        assert body["Healthcheck"] == {"Test": ["NONE"]}


def test_gvisor_gets_room_for_its_own_kernel() -> None:
    limits = replace(Limits(), memory_bytes=512 * MIB, pids=100)
    runc, runsc = resource_limits(Tier.RUNC, limits), resource_limits(Tier.RUNSC, limits)
    assert (runc["Memory"], runc["PidsLimit"]) == (512 * MIB, 100)
    assert (runsc["Memory"], runsc["PidsLimit"]) == (768 * MIB, 2048)
    assert all(values["Memory"] == values["MemorySwap"] for values in (runc, runsc))
    nproc = [u for u in build(Tier.RUNSC, limits)["HostConfig"]["Ulimits"] if u["Name"] == "nproc"]
    assert nproc == [{"Name": "nproc", "Soft": 100, "Hard": 100}]


@pytest.mark.parametrize(
    "sandbox_id", ["", "x", "../../images/x", "sbx_" + "0" * 31 + "/", "sbx_" + "G" * 32]
)
def test_only_ids_become_names(sandbox_id: str) -> None:
    with pytest.raises(InvalidRequest):
        container_name(sandbox_id)
