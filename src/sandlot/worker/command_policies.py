"""Applies the environments' command policies to every command, before a sandbox hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from sandlot.bash.process import PolicyProcess
from sandlot.domain.environment import Recipe
from sandlot.domain.execution import ExecRequest
from sandlot.domain.policy.refusals import check_decision


class CommandPolicies:
    """One process, and one thread that waits for it, for each policy that an environment names.

    The thread is the policy's own: commands that wait for a slow decision hold up no other work. Of each
    tenant, one command at a time waits for it, so that nobody's slow commands come before all others.
    """

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        policies = {recipe.policy.name: recipe.policy for recipe in recipes.values() if recipe.policy}
        self._processes = {name: PolicyProcess(policy) for name, policy in policies.items()}
        self._threads = {name: ThreadPoolExecutor(1, f"policy-{name}") for name in policies}
        self._by_environment = {
            name: recipe.policy.name for name, recipe in recipes.items() if recipe.policy is not None
        }
        # By policy and tenant: whose turn it is, and how many commands want one.
        self._turns: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def open(self) -> None:
        """Start the processes. Fails if the parser is not installed: no command would pass."""
        for process in self._processes.values():
            await asyncio.to_thread(process.start)

    async def check(self, environment: str, request: ExecRequest, tenant: str) -> None:
        """Raise ``PolicyDenied`` or ``ApprovalRequired`` unless the environment's policy lets it run."""
        name = self._by_environment.get(environment)
        if name is None:
            return
        process = self._processes[name]
        async with self._turn(name, tenant):
            decision = await asyncio.get_running_loop().run_in_executor(
                self._threads[name], process.decide, request.command, request.argv, tuple(request.env)
            )
        check_decision(decision, process.policy, approved=request.approved)

    @asynccontextmanager
    async def _turn(self, policy: str, tenant: str) -> AsyncIterator[None]:
        key = (policy, tenant)
        lock, wanted = self._turns.get(key, (asyncio.Lock(), 0))
        self._turns[key] = (lock, wanted + 1)
        try:
            async with lock:
                yield
        finally:
            wanted = self._turns[key][1] - 1
            if wanted:
                self._turns[key] = (lock, wanted)
            else:
                del self._turns[key]

    async def close(self) -> None:
        for process in self._processes.values():
            await asyncio.to_thread(process.close)
        for thread in self._threads.values():
            thread.shutdown(wait=False)
