"""Settings of fleet members, in addition to a server's.

All members get the same values, except for their own addresses, their keys and their user in Redis.
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

    It accepts tokens that a coordinator has signed. An API key opens only its metrics.
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
            "The fleet's Redis, such as redis://coordinator@10.0.0.5:6379/0 (rediss:// for TLS). The user "
            "is the member's own (deploy/redis/users.acl). Needs Redis 7 or newer with appendonly on and "
            "maxmemory-policy noeviction."
        ),
    )
    redis_password: SecretStr | None = Field(
        None, description="Password of the Redis, if SANDLOT_REDIS_URL has none."
    )
    redis_password_file: Path | None = Field(
        None,
        description=(
            "File with the Redis password, for secrets that must not be in a process's environment. "
            "Cannot be combined with SANDLOT_REDIS_PASSWORD."
        ),
    )
    redis_host: str = Field(
        "127.0.0.1",
        validation_alias=AliasChoices("SANDLOT_REDIS_HOST", "REDIS_HOST"),
        description="Host of the Redis. Ignored if SANDLOT_REDIS_URL is set.",
    )
    redis_port: int = Field(
        6379,
        ge=1,
        le=65535,
        validation_alias=AliasChoices("SANDLOT_REDIS_PORT", "REDIS_PORT"),
        description="Port of the Redis. Ignored if SANDLOT_REDIS_URL is set.",
    )
    sentinels: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Redis Sentinels as host:port, separated by commas. Sandlot asks them for the Redis's "
            "address, and uses only the user, password and database of SANDLOT_REDIS_URL."
        ),
    )
    sentinel_name: str = Field(
        "sandlot", description="Name of the Redis master in the Sentinels' configuration."
    )
    sentinel_password: SecretStr | None = Field(
        None, description="Password of the Sentinels, if they need one."
    )
    sentinel_password_file: Path | None = Field(
        None,
        description="File with the Sentinels' password. Cannot be combined with SANDLOT_SENTINEL_PASSWORD.",
    )
    cell: str = Field(
        "default", description="Name of the fleet. Fleets with different names can share one Redis."
    )

    # --- the keys -----------------------------------------------------------------------------

    fleet_private_key: SecretStr | None = Field(
        None,
        description=(
            "Key with which a coordinator signs tokens: `id:private.KEY`. `sandlot fleet keygen` creates it "
            "together with its public key. The same on all coordinators. A worker that is given one refuses "
            "to start."
        ),
    )
    fleet_private_key_file: Path | None = Field(
        None,
        description="File with the private key. Cannot be combined with SANDLOT_FLEET_PRIVATE_KEY.",
    )
    fleet_public_keys: str | None = Field(
        None,
        description=(
            "Keys with which a worker verifies tokens: `id:public.KEY`, separated by commas. To replace a "
            "pair: add the new public key on every worker, then give the coordinators the new private key, "
            "then remove the old public key."
        ),
    )
    fleet_public_keys_file: Path | None = Field(
        None, description="File with the public keys. Cannot be combined with SANDLOT_FLEET_PUBLIC_KEYS."
    )

    # --- addresses ----------------------------------------------------------------------------

    advertise_url: str | None = Field(
        None,
        description=(
            "This worker's address for coordinators and for clients that connect directly. None: "
            "http://<SANDLOT_HOST>:<SANDLOT_PORT>."
        ),
    )
    direct: bool = Field(
        True,
        description=(
            "Whether a coordinator gives clients direct access to the workers. A client that cannot "
            "reach a worker falls back to the coordinator. Set it to false if no client can reach "
            "them, such as behind a single public proxy."
        ),
    )
    expected_workers: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        validation_alias=AliasChoices("SANDLOT_EXPECTED_WORKERS", "WORKERS"),
        description=(
            "Addresses of the workers that should have joined, separated by commas. A coordinator's "
            "health names those that have not. Workers join by themselves; this list does not add any."
        ),
    )

    # --- how long, how many -------------------------------------------------------------------

    lease_s: float = Field(
        10.0,
        ge=1,
        le=300,
        description=(
            "Seconds for which a worker counts as alive after its last report. It reports three times "
            "in this period. Use the same value on all members."
        ),
    )
    lost_after_s: float = Field(
        60.0,
        ge=1,
        le=24 * 3600,
        description=(
            "Seconds to wait for a silent worker after its lease ends. Then its sessions are reported "
            "as lost and can be recreated on other workers. Use the same value on all members."
        ),
    )
    watchdog_s: float | None = Field(
        None,
        ge=5,
        le=3600,
        description=(
            "Seconds after which a hung member logs what it was doing and exits, so that Docker "
            "restarts it. A paused process counts as hung. None: never. Under systemd, use WatchdogSec "
            "in the unit instead."
        ),
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
                "SANDLOT_REDIS_URL must look like redis://:password@host:6379/0. Percent-encode / # ? "
                "@ [ and ] in the password, or put the password unchanged into a file and set "
                "SANDLOT_REDIS_PASSWORD_FILE."
            )
        if self.lost_after_s < self.lease_s:
            raise ValueError("SANDLOT_LOST_AFTER_S must not be less than SANDLOT_LEASE_S.")
        try:
            self.check_keys()
            _ = self.redis, self.sentinels_password
        except SandlotError as error:
            raise ValueError(error.message) from error
        return self

    def check_keys(self) -> None:
        """Raise if the member lacks its own keys, or has those of the other kind of member."""
        raise NotImplementedError

    @property
    def redis(self) -> str:
        """The Redis URL with its password, from whichever setting has it."""
        password = _secret(self.redis_password, self.redis_password_file, "SANDLOT_REDIS_PASSWORD")
        if password is None:
            return self._url
        address = urlsplit(self._url)
        if address.password is not None:
            raise InvalidRequest(
                "SANDLOT_REDIS_URL already has a password. Remove it there, or unset "
                "SANDLOT_REDIS_PASSWORD and SANDLOT_REDIS_PASSWORD_FILE."
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


class CoordinatorFleetSettings(FleetSettings):
    """A coordinator signs tokens."""

    def check_keys(self) -> None:
        if self.fleet_public_keys is not None or self.fleet_public_keys_file is not None:
            raise InvalidRequest(
                "SANDLOT_FLEET_PUBLIC_KEYS and SANDLOT_FLEET_PUBLIC_KEYS_FILE are for workers. A coordinator "
                "signs tokens and verifies none. Unset them."
            )
        _ = self.private_key

    @property
    def private_key(self) -> str:
        key = _secret(self.fleet_private_key, self.fleet_private_key_file, "SANDLOT_FLEET_PRIVATE_KEY")
        if key is None:
            raise InvalidRequest(
                "Missing private key. Set SANDLOT_FLEET_PRIVATE_KEY or SANDLOT_FLEET_PRIVATE_KEY_FILE to the "
                "same value on every coordinator. To create a pair of keys: sandlot fleet keygen"
            )
        return key


class WorkerFleetSettings(FleetSettings):
    """A worker verifies tokens. It cannot sign any, so whoever takes it over gets no other worker."""

    def check_keys(self) -> None:
        if self.fleet_private_key is not None or self.fleet_private_key_file is not None:
            raise InvalidRequest(
                "SANDLOT_FLEET_PRIVATE_KEY and SANDLOT_FLEET_PRIVATE_KEY_FILE are for coordinators. A worker "
                "only verifies tokens. Unset them, remove the private key from this machine, and set "
                "SANDLOT_FLEET_PUBLIC_KEYS."
            )
        _ = self.public_keys

    @property
    def public_keys(self) -> str:
        given = None if self.fleet_public_keys is None else SecretStr(self.fleet_public_keys)
        keys = _secret(given, self.fleet_public_keys_file, "SANDLOT_FLEET_PUBLIC_KEYS")
        if keys is None:
            raise InvalidRequest(
                "Missing public keys. Set SANDLOT_FLEET_PUBLIC_KEYS or SANDLOT_FLEET_PUBLIC_KEYS_FILE to the "
                "same value on every worker. To create a pair of keys: sandlot fleet keygen"
            )
        return keys


def _secret(value: SecretStr | None, file: Path | None, variable: str) -> str | None:
    if file is None:
        return None if value is None else value.get_secret_value().strip()
    if value is not None:
        raise InvalidRequest(f"Set {variable} or {variable}_FILE, not both.")
    secret = read_secret(file.expanduser(), f"the file in {variable}_FILE,")
    if not secret:
        raise InvalidRequest(f"The file in {variable}_FILE is empty.")
    return secret
