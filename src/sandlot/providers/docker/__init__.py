"""Sandboxes as containers of a Docker engine, on two tiers: ``runc`` and ``runsc`` (gVisor).

spec.py        what a sandbox's container looks like: one pure builder, nothing else makes specs
seccomp.py     the system calls that it may make, from the readable list in seccomp.toml
layer.py       the thin layer that makes an image fit, from the image's own files; pure
images.py      prepares an image with that layer, once, without ever running it
workspace.py   where a sandbox's files live
hostdir.py     the worker's own folder: lock, epoch, secrets, sockets
floors.py      engine versions that are too old
pinned.py      images that are named by digest
engine.py      the engine's API with deadlines, and its errors as ours
sandbox.py     one running sandbox: the agent's link plus what the engine says about it
provider.py    the Provider made of these
"""

from sandlot.providers.docker.provider import DockerProvider

__all__ = ["DockerProvider"]
