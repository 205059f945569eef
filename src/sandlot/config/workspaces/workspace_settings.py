"""Settings for workspaces: where they are kept, how large they grow, and how long they and snapshots stay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from sandlot.config.history_settings import MIB
from sandlot.config.package_settings import PackageSettings
from sandlot.config.registry.recipes import bytes_of_size, seconds_of_duration
from sandlot.config.workspaces.storage_folder import DEFAULT_STORAGE_DIR
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.session import DEFAULT_HIBERNATION_S, OnIdle
from sandlot.domain.workspaces.snapshots import DEFAULT_MAX_AGE_S, DEFAULT_MAX_SNAPSHOTS

GIB = 1024 * MIB
TEN_YEARS_S = 10 * 365 * 24 * 3600.0


def _read_size(size: Any) -> Any:
    try:
        return bytes_of_size(size) if isinstance(size, str) else size
    except InvalidRequest as error:
        raise ValueError(error.message) from None


def _read_time(time: Any) -> Any:
    if not isinstance(time, str) or time.strip().replace(".", "", 1).isdecimal():
        return time
    try:
        seconds = seconds_of_duration(time)
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    if seconds is None:
        raise ValueError("This time cannot be never. Use a value such as 12h or 30d.")
    return seconds


Size = Annotated[int, BeforeValidator(_read_size)]
Duration = Annotated[float, BeforeValidator(_read_time)]


class WorkspaceSettings(PackageSettings):
    workspace_store: Literal["auto", "btrfs", "volume"] = Field(
        "auto",
        description=(
            "What keeps workspaces. `btrfs`: subvolumes in SANDLOT_STORAGE_DIR, with quotas and fast "
            "snapshots and forks; the worker does not start without it. `volume`: Docker volumes, without "
            "quotas, and with full copies as snapshots and forks. "
            "`auto`: btrfs if SANDLOT_STORAGE_DIR is on one that this worker can use, else volumes. "
            "Once a worker has used btrfs, `auto` never goes back to volumes by itself. `sandlot doctor` "
            "says which it is, and why."
        ),
    )
    storage_dir: Path = Field(
        DEFAULT_STORAGE_DIR,
        description=(
            "Folder on btrfs for workspaces and snapshots. As root, `sandlot storage init --size 50G` "
            "sets one up. Workers on one machine may share it."
        ),
    )
    workspace_quota: Size = Field(
        10 * GIB,
        ge=16 * MIB,
        le=1024**5,
        description=(
            "How large one workspace may grow, in bytes or with a unit, such as `10g`. Beyond it, writes "
            "fail with `Disk quota exceeded`. Without btrfs there are no quotas."
        ),
    )
    snapshots_per_session: int = Field(
        DEFAULT_MAX_SNAPSHOTS,
        ge=1,
        le=1_000_000,
        description=(
            "How many unnamed snapshots one session keeps. Beyond it, the oldest is deleted. Snapshots "
            "with a name do not count."
        ),
    )
    snapshot_max_age: Duration = Field(
        DEFAULT_MAX_AGE_S,
        gt=0,
        le=TEN_YEARS_S,
        description=(
            "How long a snapshot is kept, in seconds or with a unit, such as `12h` or `30d`. It may outlive "
            "its session."
        ),
    )
    on_idle: OnIdle | None = Field(
        None,
        description=(
            "What becomes of a session that is idle or expires, if its request does not say it. "
            "`hibernate`: its files are kept without a container, and its next use resumes it. `end`: it "
            "ends. None: `hibernate` where workspaces are on btrfs, else `end`."
        ),
    )
    hibernated_max_age: Duration = Field(
        DEFAULT_HIBERNATION_S,
        gt=0,
        le=TEN_YEARS_S,
        description="How long a hibernated session is kept without use, in seconds or with a unit, as `30d`.",
    )

    @field_validator("storage_dir")
    @classmethod
    def _expand_storage_dir(cls, path: Path) -> Path:
        # Unit files and compose files do not expand ~.
        return path.expanduser().absolute()
