"""How many commands a tenant or a key runs at once. Each running command has a slot of its holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from sandlot.domain.callers.limits import Allowance, AllowancesOf, holders_of, no_allowances, too_many_execs
from sandlot.domain.callers.principal import Principal


class Slots(Protocol):
    """Counts slots, for this process or for a whole fleet. ``name``: of the command, unique in the process.

    ``allowances`` have a limit of commands, each.
    """

    async def take(self, name: str, allowances: Sequence[Allowance]) -> bool:
        """Take a slot of each holder. False if the command has them already. Raises ``Busy`` at a limit."""
        ...

    def resume(self, name: str, holders: Sequence[str]) -> None:
        """Take slots for a command that runs already, whatever the limits are."""
        ...

    def release(self, name: str) -> None:
        """Give the command's slots back. Does nothing if it has none."""
        ...


class SlotsInMemory:
    """``Slots`` of one process."""

    def __init__(self) -> None:
        self._holders: dict[str, tuple[str, ...]] = {}  # by command
        self._taken: dict[str, int] = {}  # by holder

    async def take(self, name: str, allowances: Sequence[Allowance]) -> bool:
        # Nothing is awaited between the check and the count, so parallel commands cannot exceed a limit.
        if not self.needs(name, allowances):
            return False
        self.resume(name, [allowance.holder for allowance in allowances])
        return True

    def needs(self, name: str, allowances: Sequence[Allowance]) -> bool:
        """Whether the command has no slots yet. Raises ``Busy`` if there are none for it."""
        if name in self._holders:
            return False
        for allowance in allowances:
            if self._taken.get(allowance.holder, 0) >= (allowance.limits.execs or 0):
                raise too_many_execs(allowance)
        return True

    def resume(self, name: str, holders: Sequence[str]) -> None:
        if name not in self._holders:
            self._holders[name] = tuple(holders)
            for holder in holders:
                self._taken[holder] = self._taken.get(holder, 0) + 1

    def release(self, name: str) -> None:
        self.released(name)

    def released(self, name: str) -> tuple[str, ...]:
        """Release, and return whose slots the command had."""
        holders = self._holders.pop(name, ())
        for holder in holders:
            self._taken[holder] -= 1
            if not self._taken[holder]:
                del self._taken[holder]
        return holders

    def items(self) -> list[tuple[str, tuple[str, ...]]]:
        """The commands that have slots, and whose."""
        return list(self._holders.items())


class ExecSlots:
    """The slots of commands by who runs them. Callers without a limit of commands are not counted."""

    def __init__(self, allowances: AllowancesOf, slots: Slots) -> None:
        self._allowances = allowances
        self._slots = slots

    async def take(self, caller: Principal, session_id: str, exec_id: str) -> bool:
        """Take a slot for a new command. False if it needs none. Raises ``Busy`` at a limit."""
        limited = [one for one in self._allowances(caller) if one.limits.execs is not None]
        return bool(limited) and await self._slots.take(f"{session_id}/{exec_id}", limited)

    def resume(self, tenant: str, key_id: str, session_id: str, exec_id: str) -> None:
        """Count a command that an earlier process has started. Its limits are perhaps not known yet."""
        self._slots.resume(f"{session_id}/{exec_id}", holders_of(tenant, key_id))

    def release(self, session_id: str, exec_id: str) -> None:
        self._slots.release(f"{session_id}/{exec_id}")


class _NoSlots(SlotsInMemory):
    def resume(self, name: str, holders: Sequence[str]) -> None: ...


# Where nobody has a limit of commands.
UNCOUNTED: Final = ExecSlots(no_allowances, _NoSlots())
