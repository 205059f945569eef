"""What this server offers: its environments, and what the registry declares. Reads it again on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Caller, Service
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.responses.json import json_response
from sandlot.domain.callers.principal import Scope
from sandlot.domain.environment import Reload
from sandlot.domain.errors import Conflict
from sandlot.domain.service import Catalogue, EnvironmentInfo, RegistryEntry

Reloader = Callable[[], Awaitable[Reload]]

router = APIRouter(prefix="/v1", tags=["catalogue"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class EnvironmentList:
    """The environments that the server offers."""

    environments: tuple[EnvironmentInfo, ...]


@dataclass(frozen=True, slots=True)
class ToolList:
    """The tools in the registry."""

    tools: tuple[RegistryEntry, ...]


@dataclass(frozen=True, slots=True)
class PromptList:
    """The prompts in the registry."""

    prompts: tuple[RegistryEntry, ...]


@dataclass(frozen=True, slots=True)
class AgentList:
    """The agents in the registry."""

    agents: tuple[RegistryEntry, ...]


@router.get("/catalogue", response_model=Catalogue)
async def get_catalogue(service: Service) -> Response:
    """Return everything that the server offers."""
    return json_response(await service.catalogue())


@router.get("/environments", response_model=EnvironmentList)
async def list_environments(service: Service) -> Response:
    """List the environments."""
    return json_response(EnvironmentList((await service.catalogue()).environments))


@router.post("/environments/reload", response_model=Reload)
async def reload_environments(caller: Caller, request: Request) -> Response:
    """Read the registry again, and offer what it now declares. Needs the scope `fleet:operate`.

    If a file has an error, the answer names it, and the server keeps what it has. Sessions go on with the
    sandboxes that they have. A coordinator tells all workers too, and answers what each of them did.
    """
    caller.require(Scope.FLEET_OPERATE)
    reloader: Reloader | None = request.app.state.reload
    if reloader is None:
        raise Conflict("This server has no registry that it could read again.")
    return json_response(await reloader())


@router.get("/tools", response_model=ToolList)
async def list_tools(service: Service) -> Response:
    """List the tools in the registry."""
    return json_response(ToolList((await service.catalogue()).tools))


@router.get("/prompts", response_model=PromptList)
async def list_prompts(service: Service) -> Response:
    """List the prompts in the registry."""
    return json_response(PromptList((await service.catalogue()).prompts))


@router.get("/agents", response_model=AgentList)
async def list_agents(service: Service) -> Response:
    """List the agents in the registry."""
    return json_response(AgentList((await service.catalogue()).agents))
