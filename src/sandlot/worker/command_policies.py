"""Applies the environments' command policies to every command, before a sandbox hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from sandlot.bash.process import PolicyProcess
from sandlot.domain.environment import Recipe
from sandlot.domain.execution import ExecRequest
from sandlot.domain.policy.refusals import check_decision


class CommandPolicies:
    """One process, and one thread that waits for it, for each policy that an environment names.

    The thread is the policy's own: commands that wait for a slow decision hold up no other work.
    """

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        policies = {recipe.policy.name: recipe.policy for recipe in recipes.values() if recipe.policy}
        self._processes = {name: PolicyProcess(policy) for name, policy in policies.items()}
        self._threads = {name: ThreadPoolExecutor(1, f"policy-{name}") for name in policies}
        self._by_environment = {
            name: recipe.policy.name for name, recipe in recipes.items() if recipe.policy is not None
        }

    async def open(self) -> None:
        """Start the processes. Fails if the parser is not installed: no command would pass."""
        for process in self._processes.values():
            await asyncio.to_thread(process.start)

    async def check(self, environment: str, request: ExecRequest) -> None:
        """Raise ``PolicyDenied`` or ``ApprovalRequired`` unless the environment's policy lets it run."""
        name = self._by_environment.get(environment)
        if name is None:
            return
        process = self._processes[name]
        decision = await asyncio.get_running_loop().run_in_executor(
            self._threads[name], process.decide, request.command, request.argv, tuple(request.env)
        )
        check_decision(decision, process.policy, approved=request.approved)

    async def close(self) -> None:
        for process in self._processes.values():
            await asyncio.to_thread(process.close)
        for thread in self._threads.values():
            thread.shutdown(wait=False)
