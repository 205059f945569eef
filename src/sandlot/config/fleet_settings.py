"""Settings of fleet members, in addition to a server's.

All members get the same values, except for their own addresses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import quote, urlsplit

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandlot.config.front_door_settings import split_list
from sandlot.config.settings import ServerSettings, read_secret
from sandlot.config.variable_names import PREFIX
from sandlot.domain.errors import InvalidRequest, SandlotError


class MemberSettings(ServerSettings):
    """Settings of a fleet's worker.

    It accepts tokens signed with the fleet's keys. An API key opens only its metrics.
    """

    needs_key: ClassVar[bool] = False


class FleetSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, populate_by_name=True, frozen=True, extra="ignore"
    )

    # --- the directory ------------------------------------------------------------------------

    redis_url: SecretStr | None = Field(
        None,
        description=(
            "The fleet's Redis, such as redis://:password@10.0.0.5:6379/0 (rediss:// for TLS). Redis 7 or "
            "newer, with appendonly on and maxmemory-policy noeviction."
        ),
    )
    redis_password: SecretStr | None = Field(
        None, description="Its password, where SANDLOT_REDIS_URL has none."
    )
    redis_password_file: Path | None = Field(
        None,
        description=(
            "A file that holds it, for secrets that should not stand in a process's environment. Not "
            "together with SANDLOT_REDIS_PASSWORD."
        ),
    )
    redis_host: str = Field(
        "127.0.0.1",
        validation_alias=AliasChoices("SANDLOT_REDIS_HOST", "REDIS_HOST"),
        description="Its host, where no SANDLOT_REDIS_URL is given.",
    )
    redis_port: int = Field(
        6379,
        ge=1,
        le=65535,
        validation_alias=AliasChoices("SANDLOT_REDIS_PORT", "REDIS_PORT"),
        description="Its port, where no SANDLOT_REDIS_URL is given.",
    )
    sentinels: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "host:port of the Redis Sentinels, separated by commas. They are asked where the Redis is; of "
            "SANDLOT_REDIS_URL only password and database count then."
        ),
    )
    sentinel_name: str = Field("sandlot", description="The name under which the Sentinels know the Redis.")
    sentinel_password: SecretStr | None = Field(
        None, description="The Sentinels' own password, if they ask for one."
    )
    sentinel_password_file: Path | None = Field(
        None, description="A file that holds it. Not together with SANDLOT_SENTINEL_PASSWORD."
    )
    cell: str = Field("default", description="Name of the fleet: several may share one Redis.")

    # --- the keys -----------------------------------------------------------------------------

    fleet_keys: SecretStr | None = Field(
        None,
        description=(
            "The keys that members sign and check tokens with: `id:secret`, separated by commas, each secret "
            "of at least 32 characters. The first signs, all are believed: to change a key, add the new one "
            "behind the old everywhere, then put it first, then take the old away."
        ),
    )
    fleet_keys_file: Path | None = Field(
        None, description="A file that holds them. Not together with SANDLOT_FLEET_KEYS."
    )

    # --- addresses ----------------------------------------------------------------------------

    advertise_url: str | None = Field(
        None,
        description=(
            "A worker's address for coordinators, and for clients that go straight to it. None: "
            "http://<SANDLOT_HOST>:<SANDLOT_PORT>."
        ),
    )
    direct: bool = Field(
        True,
        description=(
            "Whether a coordinator tells clients the way straight to the workers. A client that cannot "
            "reach them comes back to the coordinator; set false where none can, as behind one public proxy."
        ),
    )
    expected_workers: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        validation_alias=AliasChoices("SANDLOT_EXPECTED_WORKERS", "WORKERS"),
        description=(
            "Addresses of workers that should be there, separated by commas; a coordinator's health names "
            "those that have not joined. Workers join by themselves: this list brings none in."
        ),
    )

    # --- how long, how many -------------------------------------------------------------------

    lease_s: float = Field(
        10.0,
        ge=1,
        le=300,
        description=(
            "Seconds after its last report for which a worker counts as alive; it reports three times in "
            "them. All members need the same."
        ),
    )
    lost_after_s: float = Field(
        60.0,
        ge=1,
        le=24 * 3600,
        description=(
            "Seconds after the end of its lease for which a silent worker is waited for; then its sessions "
            "are reported as lost and may be made anew elsewhere. All members need the same."
        ),
    )
    watchdog_s: float | None = Field(
        None,
        ge=5,
        le=3600,
        description=(
            "Seconds for which a member may hang before it writes into its log what it was doing and ends, "
            "for Docker to start it again; a pause of the process counts. None: never. Under systemd, "
            "WatchdogSec in the unit does the same."
        ),
    )
    fleet_max_sessions: int | None = Field(
        None, ge=1, description="Sessions at once in the whole fleet. None: as many as the workers hold."
    )

    @field_validator("sentinels", "expected_workers", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)

    @model_validator(mode="after")
    def _check_consistency(self) -> FleetSettings:
        try:
            address = urlsplit(self._url)
            usable = address.scheme in ("redis", "rediss") and address.hostname and (address.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            # The message omits the value, which may contain a password.
            raise ValueError(
                "SANDLOT_REDIS_URL is not like redis://:password@host:6379/0; in a password / # ? @ [ and ] "
                "are percent-encoded, or it is given as SANDLOT_REDIS_PASSWORD_FILE as it is"
            )
        if self.lost_after_s < self.lease_s:
            raise ValueError("lost_after_s is less than lease_s")
        try:
            _ = self.keys, self.redis, self.sentinels_password
        except SandlotError as error:
            raise ValueError(error.message) from error
        return self

    @property
    def keys(self) -> str:
        if self.fleet_keys_file is not None:
            if self.fleet_keys is not None:
                raise InvalidRequest("give SANDLOT_FLEET_KEYS or SANDLOT_FLEET_KEYS_FILE, not both")
            return read_secret(self.fleet_keys_file.expanduser(), "the fleet's key file")
        if self.fleet_keys is None:
            raise InvalidRequest(
                "a fleet's members need its keys: set SANDLOT_FLEET_KEYS or SANDLOT_FLEET_KEYS_FILE to the "
                "same everywhere; make one with: echo k1:$(openssl rand -hex 32)"
            )
        return self.fleet_keys.get_secret_value().strip()

    @property
    def redis(self) -> str:
        """The Redis URL with its password, from whichever setting has it."""
        password = _secret(self.redis_password, self.redis_password_file, "SANDLOT_REDIS_PASSWORD")
        if password is None:
            return self._url
        address = urlsplit(self._url)
        if address.password is not None:
            raise InvalidRequest(
                "SANDLOT_REDIS_URL has a password, and another is given: leave one of them out"
            )
        user, _, host = address.netloc.rpartition("@")
        return address._replace(netloc=f"{user.rstrip(':')}:{quote(password, safe='')}@{host}").geturl()

    @property
    def _url(self) -> str:
        if self.redis_url is not None:
            return self.redis_url.get_secret_value().strip()
        return f"redis://{self.redis_host}:{self.redis_port}/0"

    @property
    def sentinels_password(self) -> str | None:
        return _secret(self.sentinel_password, self.sentinel_password_file, "SANDLOT_SENTINEL_PASSWORD")

    @property
    def redis_for_logs(self) -> str:
        """The Redis address for logs, without secrets."""
        if self.sentinels:
            return f"{self.sentinel_name} at {', '.join(self.sentinels)}"
        return self._url.rpartition("@")[2].partition("?")[0]


def _secret(value: SecretStr | None, file: Path | None, variable: str) -> str | None:
    if file is None:
        return None if value is None else value.get_secret_value().strip()
    if value is not None:
        raise InvalidRequest(f"give {variable} or {variable}_FILE, not both")
    secret = read_secret(file.expanduser(), f"the file of {variable}_FILE")
    if not secret:
        raise InvalidRequest(f"the file of {variable}_FILE is empty")
    return secret
