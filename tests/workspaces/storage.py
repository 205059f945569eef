"""A btrfs on a loop file, as an operator's, for as long as a test run needs it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.providers.docker.workspaces.btrfs import quotas
from sandlot.providers.docker.workspaces.btrfs.subvolumes import opened
from tests.btrfs_storage import UNMOUNTED_WITHIN_S, unmount


def require_btrfs() -> None:
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("btrfs-progs is not installed")


@contextlib.contextmanager
def mounted_btrfs(size: str = "4G", *, with_quotas: bool = True) -> Iterator[Path]:
    """``size``: of the file, which needs only as much as is written."""
    parent = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    image, folder = parent / "image", parent / "btrfs"
    folder.mkdir()
    try:
        _run("truncate", "-s", size, str(image))
        _run("mkfs.btrfs", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
        try:
            if with_quotas:
                with opened(folder) as descriptor:
                    assert quotas.enable(descriptor)
            yield folder
        finally:
            unmount(folder)
            _detach(image)
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _detach(image: Path) -> None:
    """The kernel lets the loop device go with the last mount, wherever that is."""
    deadline = time.monotonic() + UNMOUNTED_WITHIN_S
    while device := _run("losetup", "--noheadings", "--output", "NAME", "-j", str(image)).strip():
        assert time.monotonic() < deadline, f"{device} stays busy"
        time.sleep(0.2)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
