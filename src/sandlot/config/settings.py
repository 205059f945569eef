"""A server's settings, and the one place that reads them from the environment.

Every setting is a variable ``SANDLOT_<NAME>``. A few also accept the names that earlier versions of
this system used (PORT, WORKER_ID, POOL_SIZE …). docs/reference/settings.md is generated from this
file.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator
from pydantic_settings import BaseSettings

from sandlot.config.data_folder import default_data_dir
from sandlot.config.providers.e2b_settings import E2BSettings
from sandlot.config.registry.recipes import RecipeDefaults
from sandlot.config.variable_names import PREFIX
from sandlot.domain.capacity.pool import (
    DEFAULT_MAX_POOL_SIZE,
    DEFAULT_MIN_POOL_SIZE,
    DEFAULT_POOL_SIZE,
    PoolPolicy,
)
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.domain.session import DEFAULT_IDLE_TIMEOUT_S, DEFAULT_LIFETIME_S, MAX_TIMEOUT_S

MAX_KEY_BYTES = 4096
MIN_KEY_CHARACTERS = 16
# The characters that an HTTP header carries unchanged.
_KEY = re.compile(rf"[!-~]{{{MIN_KEY_CHARACTERS},}}")


class ServerSettings(E2BSettings):
    # Whether an address other than loopback needs an API key. A fleet's workers use signed tokens.
    needs_key: ClassVar[bool] = True

    # --- this worker --------------------------------------------------------------------------

    worker_id: str = Field(
        "worker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
        validation_alias=AliasChoices("SANDLOT_WORKER_ID", "WORKER_ID"),
        description=(
            "Name of this worker. It also labels the worker's containers, so keep it the same across "
            "restarts; otherwise the worker cannot find its sandboxes. Workers on the same Docker need "
            "different names. If unset, `sandlot serve` and local mode append eight characters derived "
            "from SANDLOT_DATA_DIR; fleet workers do not."
        ),
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description=(
            "Folder for the worker's records, secrets and sockets. Each worker needs its own. Defaults "
            "to /var/lib/sandlot for root and to ~/.local/share/sandlot for other users. Keep the path "
            "short: Unix socket paths below it are limited to 107 bytes."
        ),
    )
    min_free_bytes: int | None = Field(
        None,
        ge=0,
        description=(
            "Minimum free bytes on the disk of SANDLOT_DATA_DIR, on Docker's disk and, with workspaces on "
            "btrfs, in SANDLOT_STORAGE_DIR. Below this, the worker accepts no new sessions; existing ones "
            "continue. If unset: 1 GiB, or 5 % of a smaller disk. 0: stop only after a write fails."
        ),
    )
    registry_dir: Path | None = Field(
        None,
        description=(
            "Folder with your own environments, tools, prompts and agents. An entry with the name of a "
            "shipped one replaces it."
        ),
    )
    docker_host: str | None = Field(
        None,
        validation_alias=AliasChoices("SANDLOT_DOCKER_HOST", "DOCKER_HOST"),
        description=(
            "Address of Docker. None: unix:///var/run/docker.sock. Docker must run on this machine, "
            "because sandboxes connect to the worker through a Unix socket."
        ),
    )

    sandbox_users: str | None = Field(
        None,
        pattern=r"^[0-9]{1,10}-[0-9]{1,10}$",
        description=(
            "Range of user ids for sandboxes. Each sandbox gets its own id. None: "
            "1879048192-2147483647, which neither systemd nor /etc/subuid uses, or 20000-60000 if "
            "Docker uses user namespaces. Nothing else on this machine may use these ids; `sandlot "
            "doctor` checks."
        ),
    )

    # --- how many -----------------------------------------------------------------------------

    pool_size: int = Field(
        DEFAULT_POOL_SIZE,
        ge=0,
        le=1000,
        validation_alias=AliasChoices("SANDLOT_POOL_SIZE", "POOL_SIZE"),
        description=(
            "Number of warm sandboxes for the default environment while demand is low or unknown. "
            "Environments that state their own pool ignore this. Each warm sandbox uses about 7 MB of "
            "memory."
        ),
    )
    min_pool_size: int = Field(
        DEFAULT_MIN_POOL_SIZE,
        ge=0,
        le=1000,
        validation_alias=AliasChoices("SANDLOT_MIN_POOL_SIZE", "MIN_POOL_SIZE"),
        description=(
            "Minimum number of warm sandboxes when demand is low. If unset, it is lowered to the "
            "pool's size if needed."
        ),
    )
    max_pool_size: int = Field(
        DEFAULT_MAX_POOL_SIZE,
        ge=0,
        le=1000,
        validation_alias=AliasChoices("SANDLOT_MAX_POOL_SIZE", "MAX_POOL_SIZE"),
        description=(
            "Maximum number of warm sandboxes when demand is high. If unset, it is raised to the "
            "pool's size if needed."
        ),
    )
    max_sessions: int = Field(
        1000,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of concurrent sessions on this worker, if the machine has room for them. "
            "Beyond this, a create gets status 503. `sandlot doctor` shows how many fit."
        ),
    )
    create_concurrency: int = Field(
        4,
        ge=1,
        le=64,
        description=(
            "How many sandboxes to create at the same time. Docker uses about one core per start, so a "
            "higher value makes each start slower."
        ),
    )
    max_execs: int = Field(
        32,
        ge=1,
        le=1024,
        description=(
            "Maximum number of concurrent commands in one session. The next one gets status 429. This "
            "keeps one session from using up the worker's streams."
        ),
    )

    # --- how long -----------------------------------------------------------------------------

    queue_timeout_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description=(
            "Seconds that a create waits for a sandbox before it gets status 503. Use more than a "
            "refill of the pool takes, and less than the client's timeout. Local mode waits 300 s."
        ),
    )
    exec_timeout_s: float = Field(
        300.0,
        gt=0,
        le=7 * 24 * 3600,
        description=(
            "Default timeout of a command, in seconds. Terminals and commands without an output limit get "
            "SANDLOT_MAX_EXEC_TIMEOUT_S instead."
        ),
    )
    max_exec_timeout_s: float = Field(
        3600.0,
        gt=0,
        le=7 * 24 * 3600,
        description="Maximum timeout that a command may ask for, in seconds.",
    )
    exec_grace_s: float = Field(
        20.0,
        ge=1,
        le=600,
        description=(
            "Seconds that a sandbox may take to answer, after a command's timeout or to any short "
            "request. Then the call fails with `sandbox_unresponsive`."
        ),
    )
    idle_timeout_s: float = Field(
        DEFAULT_IDLE_TIMEOUT_S,
        gt=0,
        le=MAX_TIMEOUT_S,
        description=(
            "Seconds without a command or file operation after which a session ends. The request or "
            "the environment can override it."
        ),
    )
    lifetime_s: float = Field(
        DEFAULT_LIFETIME_S,
        gt=0,
        le=MAX_TIMEOUT_S,
        description=(
            "Seconds after its creation when a session ends, even if it is in use. The request or the "
            "environment can override it."
        ),
    )
    allow_never: bool = Field(
        False,
        description=(
            "Whether a request may ask for a session that never ends. Off by default, because such "
            "sessions pile up until the machine is full."
        ),
    )
    drain_timeout_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description=(
            "Seconds that a server waits for file transfers and creates when it shuts down. Running "
            "commands get two seconds: they keep running in their sandboxes, the next start takes the "
            "sandboxes over, and clients fetch the results by exec id, as the SDK does."
        ),
    )
    orphan_grace_s: float = Field(
        30.0,
        ge=1,
        le=3600,
        description=(
            "Seconds between two sightings of a sandbox that belongs to no session, after which it is "
            "removed. A single sighting could be a create in progress."
        ),
    )

    # --- logs ---------------------------------------------------------------------------------

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum severity of logged events."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="`text` for people, `json` for a log collector. Both write one event per line."
    )

    traces: Literal["off", "otlp", "console"] = Field(
        "off",
        description=(
            "Where spans of OpenTelemetry go. `otlp`: to a collector, over HTTP, as "
            "`OTEL_EXPORTER_OTLP_ENDPOINT` and OpenTelemetry's other variables say. `console`: to stderr. "
            "Needs the extra `otel`."
        ),
    )

    @field_validator("api_key_file", "data_dir", "registry_dir", "e2b_api_key_file")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        # Unit files and compose files do not expand ~.
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _check_consistency(self) -> ServerSettings:
        try:
            key = self.key
            _ = self.pool
        except SandlotError as error:
            raise ValueError(error.message) from error
        if self.needs_key and key is None and not is_loopback(self.host):
            raise ValueError(
                f"Refusing to listen on {self.host} without an API key: anyone who can reach it could run "
                "commands. Set SANDLOT_API_KEY or SANDLOT_API_KEY_FILE, or listen on 127.0.0.1."
            )
        if self.oidc_issuer is not None and (key is None or self.oidc_audience is None):
            raise ValueError(
                "SANDLOT_OIDC_ISSUER needs SANDLOT_API_KEY, the administrator's key, and "
                "SANDLOT_OIDC_AUDIENCE. Without a key, the server would be open to everyone on its machine."
            )
        if self.oidc_issuer is None and self.oidc_audience is not None:
            raise ValueError("SANDLOT_OIDC_AUDIENCE has no effect without SANDLOT_OIDC_ISSUER.")
        if self.exec_timeout_s > self.max_exec_timeout_s:
            raise ValueError("SANDLOT_EXEC_TIMEOUT_S must not be more than SANDLOT_MAX_EXEC_TIMEOUT_S.")
        return self

    @property
    def key(self) -> str | None:
        """The API key, from the environment or from its file."""
        if self.api_key_file is None:
            key = None if self.api_key is None else self.api_key.get_secret_value().strip()
        elif self.api_key is not None:
            raise InvalidRequest("Set SANDLOT_API_KEY or SANDLOT_API_KEY_FILE, not both.")
        else:
            key = read_secret(self.api_key_file, "the API key file")
        if key is not None and not _KEY.fullmatch(key):
            raise InvalidRequest(
                f"The API key must have at least {MIN_KEY_CHARACTERS} printable ASCII characters and "
                "no spaces. To create one: openssl rand -hex 32"
            )
        return key

    @property
    def e2b_key(self) -> str | None:
        """The API key of E2B, from the environment or from its file."""
        if self.e2b_api_key_file is None:
            given = self.e2b_api_key
            return None if given is None else given.get_secret_value().strip() or None
        if self.e2b_api_key is not None:
            raise InvalidRequest("Set SANDLOT_E2B_API_KEY or SANDLOT_E2B_API_KEY_FILE, not both.")
        return read_secret(self.e2b_api_key_file, "the file with E2B's API key")

    @property
    def pool(self) -> PoolPolicy:
        """The pool's policy. Only the size needs to be set: bounds that are not set adapt to it."""
        given = self.model_fields_set
        return PoolPolicy(
            size=self.pool_size,
            min=self.min_pool_size if "min_pool_size" in given else min(self.min_pool_size, self.pool_size),
            max=self.max_pool_size if "max_pool_size" in given else max(self.max_pool_size, self.pool_size),
        )

    @property
    def recipe_defaults(self) -> RecipeDefaults:
        return RecipeDefaults(self.pool, self.idle_timeout_s, self.lifetime_s, self.ceilings)


def variables(field: str, kind: type[BaseSettings] = ServerSettings) -> tuple[str, ...]:
    """The environment variables of a setting, the preferred one first."""
    alias = kind.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (PREFIX + field.upper(),)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_secret(path: Path, label: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"Cannot read {label} {path}: {error.strerror}.") from error
    if len(content) > MAX_KEY_BYTES:
        raise InvalidRequest(f"{label[:1].upper()}{label[1:]} {path} exceeds {MAX_KEY_BYTES} bytes.")
    return content.decode("utf-8", "replace").strip()
