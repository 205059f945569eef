"""What can be had here: environments, and what the registry declares."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import Service
from sandlot.api.problems import PROBLEMS
from sandlot.domain.service import Catalogue, EnvironmentInfo, RegistryEntry

router = APIRouter(prefix="/v1", tags=["catalogue"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class EnvironmentList:
    environments: tuple[EnvironmentInfo, ...]


@dataclass(frozen=True, slots=True)
class ToolList:
    tools: tuple[RegistryEntry, ...]


@dataclass(frozen=True, slots=True)
class PromptList:
    prompts: tuple[RegistryEntry, ...]


@dataclass(frozen=True, slots=True)
class AgentList:
    agents: tuple[RegistryEntry, ...]


@router.get("/catalogue", response_model=Catalogue)
async def get_catalogue(service: Service) -> Response:
    return answer(await service.catalogue())


@router.get("/environments", response_model=EnvironmentList)
async def list_environments(service: Service) -> Response:
    return answer(EnvironmentList((await service.catalogue()).environments))


@router.get("/tools", response_model=ToolList)
async def list_tools(service: Service) -> Response:
    return answer(ToolList((await service.catalogue()).tools))


@router.get("/prompts", response_model=PromptList)
async def list_prompts(service: Service) -> Response:
    return answer(PromptList((await service.catalogue()).prompts))


@router.get("/agents", response_model=AgentList)
async def list_agents(service: Service) -> Response:
    return answer(AgentList((await service.catalogue()).agents))
