"""Reads the settings from the environment. Errors name the variable."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from sandlot.config.fleet_settings import (
    CoordinatorFleetSettings,
    FleetSettings,
    MemberSettings,
    WorkerFleetSettings,
)
from sandlot.config.settings import ServerSettings, variables
from sandlot.config.variable_names import PREFIX, check_server_variables
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.text.suggestions import did_you_mean

S = TypeVar("S", bound=BaseSettings)


def server_settings(**overrides: Any) -> ServerSettings:
    """``overrides`` that are not None win over the environment."""
    return _read(ServerSettings, **overrides)


def member_settings(**overrides: Any) -> MemberSettings:
    return _read(MemberSettings, **overrides)


def worker_fleet_settings(**overrides: Any) -> WorkerFleetSettings:
    return _read(WorkerFleetSettings, **overrides)


def coordinator_fleet_settings(**overrides: Any) -> CoordinatorFleetSettings:
    return _read(CoordinatorFleetSettings, **overrides)


def _read(kind: type[S], **overrides: Any) -> S:
    for name in overrides.keys() - kind.model_fields.keys():
        raise TypeError(f"Unknown setting {name!r}.{did_you_mean(name, kind.model_fields)}")
    check_server_variables(os.environ, _all_variables())
    try:
        return kind(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise InvalidRequest("; ".join(_error_text(kind, problem) for problem in error.errors())) from error


def _all_variables() -> set[str]:
    kinds: tuple[type[BaseSettings], ...] = (ServerSettings, FleetSettings)
    return {variable for kind in kinds for field in kind.model_fields for variable in variables(field, kind)}


def _error_text(kind: type[BaseSettings], problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    place = str(problem["loc"][0]) if problem["loc"] else ""
    # The name that the value came under: the field's own, or a variable's.
    field = place if place in kind.model_fields else place.lower().removeprefix(PREFIX.lower())
    if field not in kind.model_fields:
        return message
    # The value is left out, because it may be a secret.
    return f"{variables(field, kind)[0]}: {message[:1].lower()}{message[1:]}"
