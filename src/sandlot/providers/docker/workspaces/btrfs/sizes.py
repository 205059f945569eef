"""How much workspaces use, kept in step with their snapshots. See quotas.py for what a credit is."""

from __future__ import annotations

from pathlib import Path

from sandlot.providers.docker.workspaces.btrfs import quotas, subvolumes
from sandlot.providers.docker.workspaces.btrfs.quotas import Charge


class Sizes:
    """``quota``: how large each workspace may grow. ``on`` is False where there are no quotas."""

    def __init__(self, quota: int | None) -> None:
        self.quota = quota
        self.on = False

    def charge(self, path: Path) -> Charge | None:
        if not self.on:
            return None
        with subvolumes.opened(path) as subvolume:
            return quotas.charge(subvolume, subvolumes.info(subvolume).id)

    def set_credit(self, path: Path, credit: int) -> None:
        if self.on:
            with subvolumes.opened(path) as subvolume:
                quotas.limit(subvolume, self.quota, credit)

    def limit(self, path: Path, quota: int) -> None:
        """Limit a subvolume that has a quota of its own."""
        if self.on:
            with subvolumes.opened(path) as subvolume:
                quotas.limit(subvolume, quota, 0)

    def limit_again(self, path: Path) -> None:
        """Apply the quota, which may have changed."""
        if (charge := self.charge(path)) is not None:
            self.set_credit(path, charge.credit)

    def note_size(self, snapshot: Path, size: int) -> None:
        """Note how large a snapshot's files are, for the workspaces that inherit them."""
        if self.on:
            with subvolumes.opened(snapshot) as subvolume:
                quotas.limit(subvolume, None, -size)

    def inherit(self, snapshot: Path, workspace: Path) -> None:
        """Limit a new workspace with a snapshot's files."""
        if (charge := self.charge(snapshot)) is not None:
            self.set_credit(workspace, charge.credit)
