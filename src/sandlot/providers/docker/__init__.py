"""Sandboxes as containers of a Docker engine, on two tiers: ``runc`` and ``runsc`` (gVisor).

spec.py                the container's specification: one pure builder; nothing else makes specs
seccomp.py             the system calls that a sandbox may make, from the list in seccomp.toml
images/layer.py        the thin layer that makes an image usable, from the image's own files; pure
images/preparing.py    prepares an image with that layer, once, without ever running it
images/pinned.py       images that are named by digest
workspaces/            where sandboxes' files live: on btrfs, or in volumes
host/folder.py         the worker's own folder: lock, epoch, secrets, sockets
host/users.py          a user id for each sandbox
engine_requirements.py  what the engine must have: runtimes, and versions without known escapes
engine.py              the engine's API, with deadlines and domain errors
end_watcher.py         notices when containers end
limit_changes.py       which limits can change while a sandbox runs
sandbox.py             one running sandbox: the agent's link plus the engine's view of it
provider.py            the Provider, built from these
"""

from sandlot.providers.docker.provider import DockerProvider

__all__ = ["DockerProvider"]
