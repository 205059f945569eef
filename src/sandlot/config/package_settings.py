"""Settings for the package cache: whether there is one, how large it is and which registries it asks."""

from __future__ import annotations

from pydantic import Field, field_validator

from sandlot.config.egress_settings import EgressSettings
from sandlot.config.history_settings import MIB
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.packages.registries import DEFAULT_NPM, DEFAULT_PYPI, Npm, Pypi, Registry
from sandlot.domain.secrets.gateways import parse_upstream


class PackageSettings(EgressSettings):
    package_cache: bool = Field(
        False,
        description=(
            "Whether the worker keeps Python and npm packages that sandboxes install, so that the next "
            "install takes them from its disk. They are in `packages` in SANDLOT_DATA_DIR."
        ),
    )
    package_cache_max_bytes: int = Field(
        10 * 1024 * MIB,
        ge=64 * MIB,
        description=(
            "Maximum size of the package cache. Beyond it, packages that were not used for the longest time "
            "are deleted. A package may have half of it at most."
        ),
    )
    pypi_index: str = Field(
        DEFAULT_PYPI,
        description=(
            "The index that the package cache asks for Python packages, such as a mirror. It may have a "
            "private address. Its files must be on the same host."
        ),
    )
    npm_registry: str = Field(
        DEFAULT_NPM,
        description=(
            "The registry that the package cache asks for npm packages. It may have a private address."
        ),
    )

    @field_validator("pypi_index", "npm_registry")
    @classmethod
    def _check_upstream(cls, url: str) -> str:
        try:
            parse_upstream(url)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        return url

    @property
    def package_registries(self) -> tuple[Registry, ...]:
        return (Pypi(parse_upstream(self.pypi_index)), Npm(parse_upstream(self.npm_registry)))
