"""What the fake keeps of a session, how it begins, what policies let run, and the pool that it reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandlot.bash.reading import read_request
from sandlot.domain.artifacts.patterns import check_patterns
from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.limits import grant_limits
from sandlot.domain.capacity.pool import PoolStats
from sandlot.domain.code.contexts import Language
from sandlot.domain.environment import Recipe
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_session_id
from sandlot.domain.policy.cells import commands_of
from sandlot.domain.policy.deciding import decide
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.policy.refusals import check_decisions
from sandlot.domain.session import CreateSession, Predecessor, Session
from sandlot.domain.session_states import as_unresponsive, resolve_timeout
from sandlot.testing.fake.computer import FakeComputer
from sandlot.testing.fake.network.session_network import FakeNetwork
from sandlot.testing.fake.tree import Folder, new_workspace


@dataclass
class Record:
    session: Session
    request: CreateSession
    computer: FakeComputer | None
    network: FakeNetwork
    files: Folder = field(default_factory=new_workspace)  # of its /workspace, which outlive its computers

    @property
    def visible_session(self) -> Session:
        silent = self.computer is not None and self.computer.frozen
        return as_unresponsive(self.session) if silent else self.session


def new_session(
    principal: Principal,
    request: CreateSession,
    recipe: Recipe,
    now: float,
    predecessor: Predecessor | None,
    *,
    never_allowed: bool,
) -> Session:
    environment = recipe.environment
    idle_s, lifetime_s = (
        resolve_timeout(asked, configured, never_allowed=never_allowed)
        for asked, configured in (
            (request.idle_timeout_s, recipe.idle_timeout_s),
            (request.lifetime_s, recipe.lifetime_s),
        )
    )
    return Session(
        id=new_session_id(),
        environment=environment.name,
        created_at=now,
        last_active_at=now,
        tenant=principal.tenant,
        created_by=principal.key_id,
        record=request.record or recipe.record,
        network=request.network,
        thread=request.thread,
        idle_timeout_s=idle_s,
        lifetime_s=lifetime_s,
        limits=grant_limits(request.limits, environment.limits, recipe.ceilings, environment.name),
        metadata=dict(request.metadata),
        artifacts=check_patterns((*recipe.artifacts, *request.artifacts)),
        predecessor=predecessor,
    )


def full_pool(recipe: Recipe) -> PoolStats:
    """A pool that is always full, because creating a fake sandbox takes no time."""
    size = recipe.pool.size
    return PoolStats(ready=size, making=0, waiting=0, target=size, target_reason="a fake", hits=0)


def check_policies(
    recipe: Recipe, own: CommandPolicy | None, request: ExecRequest, language: Language | None
) -> None:
    """Raise ``PolicyDenied`` or ``ApprovalRequired`` unless the policies of environment and tenant let it
    run. ``own``: the tenant's. ``language``: what a cell is written in.
    """
    applying = {policy.name: policy for policy in (recipe.policy, own) if policy is not None}
    if applying:
        readings = [read_request(*command, request.env) for command in commands_of(request, language)]
        decided = [(policy, decide(policy, reading)) for policy in applying.values() for reading in readings]
        check_decisions(decided, approved=request.approved)
