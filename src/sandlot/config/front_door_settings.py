"""Settings of a server's front door: its address, its keys and its limits on clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandlot.config.variable_names import PREFIX


class FrontDoorSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, populate_by_name=True, frozen=True, extra="ignore"
    )

    host: str = Field(
        "127.0.0.1",
        description=(
            "Address to listen on. Loopback by default, because whoever reaches the server runs commands; "
            "any other address needs an API key."
        ),
    )
    port: int = Field(
        8000,
        ge=1,
        le=65535,
        validation_alias=AliasChoices("SANDLOT_PORT", "PORT"),
        description="TCP port to listen on.",
    )
    api_key: SecretStr | None = Field(
        None,
        description=(
            "API key that clients must send: at least 16 printable ASCII characters, without spaces. If "
            "unset, no key is required; this works on loopback only."
        ),
    )
    api_key_file: Path | None = Field(
        None,
        description=(
            "A file that holds the key, for secrets that should not stand in a process's environment. Not "
            "together with SANDLOT_API_KEY."
        ),
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Host names that requests may carry beside the loopback ones, separated by commas. A server on "
            "loopback takes no others, so that a web page cannot reach it under a name of its own: give the "
            "public name here where a reverse proxy passes it on. None on any other address: any name."
        ),
    )
    max_connections: int = Field(
        2000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of open connections. Never more than half of the descriptors that the process "
            "may open (`ulimit -n`): the others are kept for sandboxes and the engine. When there are too "
            "many, the one that has been idle longest makes room; if none is idle, a new one is answered "
            "with 503."
        ),
    )
    max_connections_per_address: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="The same from one address. A reverse proxy is one address: set it as high as the above.",
    )
    max_streams: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Event streams and WebSockets open at once; the next is answered with 429.",
    )
    max_streams_per_key: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="The same with one key or token.",
    )
    max_streams_per_address: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="The same from one address.",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        le=3600,
        description=(
            "Seconds to keep an idle connection open. Must be longer than the keep-alive of a proxy in front "
            "of the server."
        ),
    )
    max_held_bytes: int = Field(
        160 * 1024 * 1024,
        ge=32 * 1024 * 1024,
        description=(
            "Bytes of results and files that the server holds on their way to clients, of all together. They "
            "are taken before they are read; beyond it the answer is 429, and a result is kept for who asks "
            "again by its exec id. The first 64 KiB of each answer do not count."
        ),
    )
    max_upload_bytes: int = Field(
        1024**3,
        ge=1024,
        description=(
            "Bytes in one uploaded file or archive. 1 GiB: a dataset passes, a disk is not filled by one "
            "request."
        ),
    )

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)


def split_list(value: Any) -> Any:
    """Split a variable's comma-separated list. Any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())
