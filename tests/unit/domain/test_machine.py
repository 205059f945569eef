"""What fits on a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.capacity.machine import (
    GIB,
    Machine,
    MachineUse,
    Overcommit,
    Resources,
    allocatable,
    count_fitting,
    shortage,
    total_limits,
    units,
)

LIMITS = st.builds(
    Limits,
    memory_bytes=st.integers(32 * MIB, 64 * GIB),
    cpus=st.floats(0.05, 64).map(lambda cpus: round(cpus, 2)),
    pids=st.integers(32, 4096),
)
MACHINES = st.builds(
    Machine,
    memory_bytes=st.integers(GIB, 1024 * GIB),
    cpus=st.integers(1, 256),
    pids=st.sampled_from([32768, 4_194_304]),
)


def use(machine: Machine, *sandboxes: Limits) -> MachineUse:
    return MachineUse(allocatable(machine, Overcommit()), total_limits(sandboxes))


def test_by_default() -> None:
    """O9: of a machine with 16 GiB and 4 cores some dozens, by what there is least of."""
    machine = Machine(16 * GIB, 4, 4_194_304)
    assert allocatable(machine, Overcommit()) == Resources(int(22.5 * GIB), 32.0, 4_194_304 - 2048)
    assert count_fitting(use(machine), Limits()) == 45  # by memory
    assert count_fitting(use(machine), Limits(cpus=1.0)) == 32  # by cores
    assert count_fitting(use(Machine(256 * GIB, 64, 32768)), Limits()) == 120  # by processes
    assert count_fitting(use(machine, *[Limits()] * 45), Limits()) == 0


def test_a_small_machine_keeps_a_part_for_the_rest() -> None:
    assert allocatable(Machine(GIB, 1, 32768), Overcommit(1.0, 1.0)).memory_bytes == 0.75 * GIB


@given(MACHINES, LIMITS)
def test_as_many_as_fit_and_not_one_more(machine: Machine, limits: Limits) -> None:
    count = min(count_fitting(use(machine), limits), 300)
    held = [limits] * count
    if count:
        assert shortage(use(machine, *held[1:]), limits) is None
    assert count_fitting(use(machine, *held), limits) == count_fitting(use(machine), limits) - count
    if count < 300:
        assert shortage(use(machine, *held), limits) is not None


@given(LIMITS, LIMITS)
def test_units_are_enough(limits: Limits, usual: Limits) -> None:
    """Room for so many usual ones is room for this one."""
    many = units(limits, usual)
    assert many >= 1
    assert many * usual.memory_bytes >= limits.memory_bytes
    assert many * usual.cpus >= limits.cpus - 1e-3
    assert many * usual.pids >= limits.pids


@pytest.mark.parametrize(
    ("limits", "many"),
    [
        (Limits(), 1),
        (Limits(memory_bytes=64 * MIB), 1),
        (Limits(memory_bytes=513 * MIB), 2),
        (Limits(cpus=2.0), 4),
        (Limits(memory_bytes=2 * GIB, cpus=0.25), 4),
    ],
)
def test_units(limits: Limits, many: int) -> None:
    assert units(limits, Limits()) == many
