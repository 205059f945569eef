"""Settings for the history: whether it is kept, for how long, what it says and where it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic_settings import NoDecode

from sandlot.config.ceiling_settings import CeilingSettings
from sandlot.config.front_door_settings import split_list
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Networks, parse_networks

MIB = 1024 * 1024


def _checked_ranges(ranges: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_networks(ranges)
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return ranges


# Addresses that may be reached although they are not public.
AddressRanges = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(split_list), AfterValidator(_checked_ranges)
]


class HistorySettings(CeilingSettings):
    history: bool = Field(
        True,
        description=(
            "Whether the worker records what happens: sessions, commands, written files, use of keys. "
            "The record is in `history.sqlite3` in SANDLOT_DATA_DIR."
        ),
    )
    history_max_age_s: float = Field(
        30 * 24 * 3600.0,
        gt=0,
        le=10 * 365 * 24 * 3600,
        description="Seconds after which an event is deleted from the history.",
    )
    history_max_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description=(
            "Maximum size of the history on disk. Beyond it, the oldest events are deleted. A command takes "
            "about 1,100 bytes."
        ),
    )
    history_commands: Literal["full", "hashed"] = Field(
        "full",
        description=(
            "`full` records commands, with the values of variables masked. `hashed` records a keyed digest "
            "of each command, so that equal ones can be recognised and none can be read."
        ),
    )
    history_export: str | None = Field(
        None,
        description=(
            "Where to export events as they are recorded, each as one line of JSON: the absolute path of a "
            "file, `syslog://HOST:PORT` (UDP) or `syslog:///dev/log`. The export has the events of all "
            "tenants."
        ),
    )
    history_export_max_bytes: int = Field(
        64 * MIB,
        ge=64 * 1024,
        description="Size at which the exported file is renamed to `.1` and a new one begins.",
    )
    history_export_files: int = Field(
        5, ge=1, le=1000, description="How many renamed files to keep. The oldest is deleted."
    )

    recordings: bool = Field(
        True,
        description=(
            "Whether sessions that ask for it are recorded: what their commands write, with its timing. The "
            "recordings are in `recordings` in SANDLOT_DATA_DIR."
        ),
    )
    recordings_max_session_bytes: int = Field(
        16 * MIB,
        ge=64 * 1024,
        description="Size at which a session's recording stops. Its commands go on.",
    )
    recordings_max_bytes: int = Field(
        1024 * MIB,
        ge=MIB,
        description=(
            "Maximum size of all recordings. Beyond it, the oldest ones of the tenant that has the most are "
            "deleted."
        ),
    )
    recordings_max_age_s: float = Field(
        30 * 24 * 3600.0,
        gt=0,
        le=10 * 365 * 24 * 3600,
        description="Seconds after the end of a session after which its recording is deleted.",
    )
    webhook_allow: AddressRanges = Field(
        (),
        description=(
            "Ranges of addresses to which tenants may send webhooks although they are not public, such as "
            "`10.1.2.0/24,fd00::/8`, separated by commas. Only there may a webhook be `http`. Each tenant "
            "can then make this server send requests to these addresses. In a fleet, give coordinators and "
            "workers the same ranges."
        ),
    )

    @property
    def webhook_networks(self) -> Networks:
        return parse_networks(self.webhook_allow)

    @field_validator("history_export")
    @classmethod
    def _check_target(cls, target: str | None) -> str | None:
        if target is not None and not _is_target(target):
            raise ValueError(
                f"The history cannot be exported to {target!r:.200}. Use the absolute path of a file, "
                "syslog://HOST:PORT or syslog:///dev/log."
            )
        return target


def _is_target(target: str) -> bool:
    try:
        url = urlsplit(target)
        port = url.port
    except ValueError:
        return False
    if url.scheme != "syslog":
        return Path(target).is_absolute()
    return bool(url.hostname) != bool(url.path.strip("/")) and port != 0
