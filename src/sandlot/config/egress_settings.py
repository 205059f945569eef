"""Settings for what sandboxes may connect to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from sandlot.config.front_door_settings import split_list
from sandlot.config.history_settings import AddressRanges, HistorySettings
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Networks, parse_networks
from sandlot.domain.network.policy import DEFAULT_CEILING, NONE, EgressPolicy
from sandlot.domain.network.rules import PUBLIC

ANY = "any"


class EgressSettings(HistorySettings):
    egress_ceiling: Annotated[tuple[str, ...], NoDecode] = Field(
        DEFAULT_CEILING.allow,
        description=(
            "The most that a session may ask to connect to, beyond what its environment allows: hosts and "
            f"presets, separated by commas. `{PUBLIC}`: every name, on ports 80 and 443. `{NONE}`: nothing. "
            f"`{ANY}`: no ceiling, so any port of any public host. `packages,db.example.com:5432`: these. A "
            "request for more gets status 422."
        ),
    )
    egress_allow: AddressRanges = Field(
        (),
        description=(
            "Ranges of addresses that sandboxes may reach although they are not public, such as "
            "`10.1.2.0/24,fd00::/8`, separated by commas. A policy must allow the name too. Without this, no "
            "policy leads to this machine, its network or a cloud's metadata."
        ),
    )

    @field_validator("egress_ceiling", mode="before")
    @classmethod
    def _split_egress(cls, value: Any) -> Any:
        return split_list(value)

    @field_validator("egress_ceiling")
    @classmethod
    def _check_ceiling(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        if len(entries) > 1 and {ANY, NONE} & set(entries):
            raise ValueError(f"{ANY} and {NONE} stand alone.")
        try:
            _ceiling_of(entries)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        return entries

    @property
    def egress_ceiling_policy(self) -> EgressPolicy | None:
        """None: no ceiling."""
        return _ceiling_of(self.egress_ceiling)

    @property
    def egress_networks(self) -> Networks:
        return parse_networks(self.egress_allow)


def _ceiling_of(entries: tuple[str, ...]) -> EgressPolicy | None:
    if entries == (ANY,):
        return None
    return EgressPolicy(() if entries == (NONE,) else entries)
