"""Applies the command policies of environments and tenants to every command, before a sandbox hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from sandlot.bash.process import PolicyProcess
from sandlot.domain.code.contexts import Language
from sandlot.domain.environment import Recipe
from sandlot.domain.execution import ExecRequest
from sandlot.domain.policy.cells import commands_of
from sandlot.domain.policy.deciding import Decision
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.policy.refusals import check_decisions
from sandlot.domain.policy.tenant_policies import TenantPolicies


class _Reader:
    """A policy's process, and the one thread that waits for it."""

    def __init__(self, policy: CommandPolicy) -> None:
        self.policy = policy
        self.process = PolicyProcess(policy)
        self.thread = ThreadPoolExecutor(1, f"policy-{policy.name}")

    def retire(self) -> None:
        """End the process after the decisions that already wait for it."""
        self.thread.submit(self.process.close)
        self.thread.shutdown(wait=False)


class CommandPolicies:
    """One reader for each policy that an environment names, and for each that a tenant's command has needed.

    The thread is the policy's own: commands that wait for a slow decision hold up no other work. Of each
    tenant, one command at a time waits for it, so that nobody's slow commands come before all others.
    """

    def __init__(self, recipes: Mapping[str, Recipe], tenants: TenantPolicies) -> None:
        self._by_environment = _policies_of(recipes)
        self._tenants = tenants
        # By the policy's name, which is unique in a registry. So there are never more than the registry has.
        self._readers = {policy.name: _Reader(policy) for policy in self._by_environment.values()}
        # By policy and tenant: whose turn it is, and how many commands want one.
        self._turns: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def open(self) -> None:
        """Start the environments' readers. Fails if the parser is not installed: no command would pass."""
        for reader in self._readers.values():
            await asyncio.to_thread(reader.process.start)

    async def reload(self, recipes: Mapping[str, Recipe], known: Collection[str]) -> None:
        """Apply other policies from the next command on. If one of them cannot start, nothing changes.

        An environment that is gone keeps its policy, for the sessions that are left of it.
        ``known``: the names of all policies in the registry.
        """
        by_environment = _policies_of(recipes)
        fresh = [
            _Reader(policy)
            for policy in {policy.name: policy for policy in by_environment.values()}.values()
            if self._reader(policy) is None
        ]
        try:
            for reader in fresh:
                await asyncio.to_thread(reader.process.start)
        except BaseException:
            for reader in fresh:
                reader.retire()
            raise
        gone = {name: policy for name, policy in self._by_environment.items() if name not in recipes}
        self._by_environment = gone | by_environment
        for reader in fresh:
            self._use(reader)
        for name in self._readers.keys() - {*known, *(policy.name for policy in gone.values())}:
            self._readers.pop(name).retire()

    async def check(
        self, environment: str, request: ExecRequest, tenant: str, language: Language | None = None
    ) -> None:
        """Raise ``PolicyDenied`` or ``ApprovalRequired`` unless the policies of environment and tenant let
        it run. ``language``: what a cell is written in.
        """
        both = (self._by_environment.get(environment), self._tenants.of(tenant))
        policies = {policy.name: policy for policy in both if policy is not None}
        if not policies:
            return
        commands = commands_of(request, language)
        decided = [
            (policy, await self._decide(policy, command, argv, tuple(request.env), tenant))
            for policy in policies.values()
            for command, argv in commands
        ]
        check_decisions(decided, approved=request.approved)

    def apply_to(self, environment: str, tenant: str) -> bool:
        """Whether there is a policy at all."""
        return environment in self._by_environment or self._tenants.of(tenant) is not None

    async def _decide(
        self,
        policy: CommandPolicy,
        command: str | None,
        argv: tuple[str, ...] | None,
        env: tuple[str, ...],
        tenant: str,
    ) -> Decision:
        async with self._turn(policy.name, tenant):
            reader = self._reader(policy)
            if reader is None:
                # The process starts with the first decision, on the reader's thread.
                reader = self._use(_Reader(policy))
            return await asyncio.get_running_loop().run_in_executor(
                reader.thread, reader.process.decide, command, argv, env
            )

    def _reader(self, policy: CommandPolicy) -> _Reader | None:
        reader = self._readers.get(policy.name)
        return reader if reader is not None and reader.policy == policy else None

    def _use(self, reader: _Reader) -> _Reader:
        replaced, self._readers[reader.policy.name] = self._readers.get(reader.policy.name), reader
        if replaced is not None:
            replaced.retire()
        return reader

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
        for reader in self._readers.values():
            await asyncio.to_thread(reader.process.close)
            reader.thread.shutdown(wait=False)


def _policies_of(recipes: Mapping[str, Recipe]) -> dict[str, CommandPolicy]:
    return {name: recipe.policy for name, recipe in recipes.items() if recipe.policy is not None}
