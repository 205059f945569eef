"""What the engine says of a container, on every way that one comes to be, equals a committed file.

After a change that is meant, write the files anew: SANDLOT_WRITE_GOLDEN=1 pytest tests/docker/test_golden.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.testing.provider_suite import Harness
from tests.docker.conftest import docker

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

GOLDEN = Path(__file__).parent.parent / "golden"
ENGINE = "26.1."  # whose answers the files are: another version adds fields and masked paths of its own


def inspected(sandbox_id: str, data_dir: str, owner: str, image: str) -> dict[str, Any]:
    """Configuration alone, with what belongs to one sandbox replaced by its name."""
    (container,) = docker("inspect", f"sandlot-{sandbox_id}")
    kept = {
        name: container[name]
        for name in ("Path", "Args", "AppArmorProfile", "Config", "HostConfig", "Mounts")
    }
    text = json.dumps(kept, indent=1, sort_keys=True)
    for value, name in (
        (sandbox_id, "SANDBOX"),
        (sandbox_id.removeprefix("sbx_"), "SANDBOX"),
        (data_dir, "DATA"),
        (owner, "OWNER"),
        (image, "IMAGE"),
    ):
        text = text.replace(value, name)
    plain: dict[str, Any] = json.loads(text)
    (agent,) = [mount for mount in plain["Mounts"] if mount["Destination"] == "/.sandlot/agent"]
    text = text.replace(agent["Source"], "AGENT")
    (link,) = [mount for mount in plain["Mounts"] if mount["Destination"] == "/.sandlot/link/host"]
    text = text.replace(link["Source"], "LINK").replace(str(Path(link["Source"]).parent), "FOLDER")
    volume = [mount for mount in plain["Mounts"] if mount["Type"] == "volume"]
    text = text.replace(volume[0]["Source"], "VOLUME")
    plain = json.loads(text)
    plain["Mounts"].sort(key=lambda mount: mount["Destination"])
    # What the image was made of is not the builder's: its environment and labels vary with the image.
    plain["Config"]["Labels"] = {
        k: v for k, v in plain["Config"]["Labels"].items() if k.startswith("sandlot.")
    }
    for name in ("sandlot.prepared-from", "sandlot.preparer", "sandlot.source"):
        plain["Config"]["Labels"].pop(name, None)
    return plain


async def test_inspect_equals_the_golden_file(harness: Harness) -> None:
    version = str(docker("version", "--format", "{{.Server.Version}}"))
    if not version.startswith(ENGINE):
        pytest.skip(
            f"the golden files are of Docker {ENGINE}x, this is {version.strip()}; test_spec.py compares what we ask for"
        )
    spec = SandboxSpec(id=new_sandbox_id(), environment=harness.environment, labels={"who": "golden"})
    harness.made.append(spec.id)
    await harness.provider.create(spec)
    provider: Any = harness.provider
    details = (str(provider._host.path), provider._owner, docker("inspect", f"sandlot-{spec.id}")[0]["Image"])
    created = inspected(spec.id, *details)
    path = GOLDEN / f"inspect-{harness.environment.tier}.json"
    if os.environ.get("SANDLOT_WRITE_GOLDEN"):
        path.write_text(json.dumps(created, indent=1, sort_keys=True) + "\n")
    assert created == json.loads(path.read_text())
    harness.provider = await harness.reopen()
    await harness.provider.adopt(spec.id)
    assert inspected(spec.id, *details) == created, "adopting changes nothing"
    await harness.provider.destroy(spec.id)
