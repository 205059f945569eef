"""What this server offers: its environments, and what the registry declares."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from sandlot.api.context import Service
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.responses.json import json_response
from sandlot.domain.service import Catalogue, EnvironmentInfo, RegistryEntry

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
