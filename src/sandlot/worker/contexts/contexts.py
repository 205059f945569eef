"""``Contexts``: what a session's calls on its contexts do, and the exec that runs a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sandlot.domain.code.contexts import Cell, Context, CreateContext, Language, new_context_id
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import NotFound, SandlotError, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.worker.contexts.bridges import Bridge, Bridges, NoKernels, context_of
from sandlot.worker.contexts.cells import exec_of

# Prints an event that no kernel has made, in place of a cell, with the status of a dead kernel. Any image
# with kernels has a shell.
_SAY: Final = 'printf "%s\\n" "$0"; exit 3'
_LOST: Final = {
    "type": "error",
    "name": "KernelDied",
    "value": "The session's kernels ended after its last cell, and their state is lost. This code did not "
    "run. Run it again, with what it builds on.",
    "traceback": [],
}


class Contexts:
    """``recipes``: the worker's environments, for the error that names those with kernels."""

    def __init__(self, bridges: Bridges, recipes: Mapping[str, Recipe]) -> None:
        self._bridges = bridges
        self._recipes = recipes

    async def exec_for(self, sandbox: Sandbox, request: ExecRequest) -> tuple[ExecRequest, bytes | None]:
        """The exec that runs the request's cell, and its input. When this returns, the bridge runs."""
        assert request.cell is not None, "the request is for a cell"
        language = await self.language_of(sandbox, request.cell)
        bridge = await self._ready(sandbox)
        self._check_speaks(bridge, language)
        if bridge.state_lost and not await _is_known(sandbox, request.exec_id):
            bridge.state_lost = False
            return _lost_cell(request), None
        return exec_of(request, language, sandbox.agent_program)

    async def language_of(self, sandbox: Sandbox, cell: Cell) -> Language:
        """What the cell's context speaks. ``NotFound`` if there is no such context."""
        if cell.context in set(Language):
            return Language(cell.context)
        bridge = await self._ready(sandbox)
        if cell.context not in bridge.by_context:
            await self.list(sandbox)
        language = bridge.by_context.get(cell.context)
        if language is None:
            raise NotFound(
                f"This session has no context {cell.context!r}. Create it first, or use the default context "
                f"of a language: {', '.join(Language)}."
            )
        return language

    async def create(self, sandbox: Sandbox, request: CreateContext) -> Context:
        bridge = await self._ready(sandbox)
        self._check_speaks(bridge, request.language)
        name = request.context_id or new_context_id(request.language)
        body = {"op": "create", "context": name, "language": request.language, "cwd": request.cwd}
        return self._taken(bridge, await bridge.ask(sandbox, body))

    async def list(self, sandbox: Sandbox) -> Sequence[Context]:
        bridge = await self._ready(sandbox)
        answer = (await bridge.ask(sandbox, {"op": "list"})).get("contexts")
        bodies = answer if isinstance(answer, list) else []
        contexts = [context for body in bodies if (context := context_of(body)) is not None]
        bridge.by_context = {context.id: context.language for context in contexts}
        return contexts

    async def interrupt(self, sandbox: Sandbox, name: str) -> None:
        bridge = await self._ready(sandbox)
        await bridge.ask(sandbox, {"op": "interrupt", "context": name})

    async def restart(self, sandbox: Sandbox, name: str) -> Context:
        bridge = await self._ready(sandbox)
        return self._taken(bridge, await bridge.ask(sandbox, {"op": "restart", "context": name}))

    async def delete(self, sandbox: Sandbox, name: str) -> None:
        bridge = await self._ready(sandbox)
        await bridge.ask(sandbox, {"op": "delete", "context": name})
        bridge.by_context.pop(name, None)

    async def _ready(self, sandbox: Sandbox) -> Bridge:
        bridge = self._bridges.of(sandbox)
        try:
            await bridge.ready(sandbox)
        except NoKernels as error:
            raise Unsupported(f"{error.message} {self._advice}") from None
        return bridge

    def _check_speaks(self, bridge: Bridge, language: Language) -> None:
        if language not in bridge.languages:
            known = ", ".join(bridge.languages) or "none"
            raise Unsupported(
                f"The image of this session has no kernel for {language}; it has: {known}. {self._advice}"
            )

    @property
    def _advice(self) -> str:
        names = sorted(name for name, recipe in self._recipes.items() if recipe.contexts)
        if names:
            return f"Use an environment that has kernels, such as {names[0]}."
        return "Use an environment whose image has Jupyter kernels; `sandlot images build code` builds one."

    def _taken(self, bridge: Bridge, answer: Mapping[str, object]) -> Context:
        context = context_of(answer.get("context"))
        if context is None:
            raise SandlotError("The kernels of this session answered with something that is no context.")
        bridge.by_context[context.id] = context.language
        return context


async def _is_known(sandbox: Sandbox, exec_id: str) -> bool:
    """Whether this cell has run already, so that its own result is asked for."""
    return any(known.exec_id == exec_id for known in await sandbox.list_execs())


def _lost_cell(request: ExecRequest) -> ExecRequest:
    return replace(request, cell=None, argv=("sh", "-c", _SAY, json.dumps(_LOST)))
