"""Summarises a history in figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.chaos.history import History
from bench.chaos.sightings import Observations, Sandbox, Violation
from bench.rig import p50, p99

TWO = "two at once"
VIOLATIONS_SHOWN = 30


def summary(history: History, violations: Sequence[Violation]) -> dict[str, Any]:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for operation in history.operations:
        assert operation.call.do is not None
        outcomes[operation.call.do][operation.end.event if operation.end else "never"] += 1
        if operation.ok:
            seconds[operation.call.do].append(operation.end_at - operation.begin_at)
        elif operation.end is not None:
            errors[operation.end.code or "none"] += 1
    heal: dict[str, list[float]] = defaultdict(list)
    for event in history.of_kind("healed"):
        assert event.kind is not None
        heal[TWO if " + " in event.kind else event.kind].append(event.seconds or 0.0)
    observed = Observations(history)
    return {
        "seconds": max((operation.begin_at for operation in history.operations), default=0.0),
        "operations": {
            name: {
                **{event: counts[event] for event in ("ok", "fail", "unknown", "never")},
                "p50_ms": p50(seconds[name]) * 1000 if seconds[name] else None,
                "p99_ms": p99(seconds[name]) * 1000 if seconds[name] else None,
            }
            for name, counts in sorted(outcomes.items())
        },
        "errors": dict(errors.most_common()),
        "faults": {
            name: {"times": len(found), "healed_p50_s": median(found), "healed_max_s": max(found)}
            for name, found in sorted(heal.items())
        },
        "sandboxes": len({sighting.sandbox for sighting in observed.sightings}),
        "losses_reported": len(observed.losses),
        "came_back_after_a_loss": len(_came_back(observed)),
        "lines_read": sum(len(reading.lines) for reading in observed.readings),
        "memory": _memory(history),
        "violations": dict(Counter(violation.rule for violation in violations)),
    }


def _came_back(observed: Observations) -> set[Sandbox]:
    """Sandboxes that were reported as lost with their worker and then came back with it.

    That is allowed, because nothing is lost and no other worker had taken them over. It is only
    counted.
    """
    reported = {
        sighting.sandbox: sighting.end
        for sighting in sorted(observed.sightings, key=lambda sighting: -sighting.end)
        if sighting.state == "lost"
    }
    return {
        sighting.sandbox
        for sighting in observed.sightings
        if sighting.state == "active" and sighting.begin > reported.get(sighting.sandbox, float("inf"))
    }


def _memory(history: History) -> dict[str, dict[str, float]]:
    samples: dict[str, list[int]] = defaultdict(list)
    for event in history.of_kind("member"):
        assert event.target is not None
        samples[event.target].append(event.rss or 0)
    found = {}
    for member, values in sorted(samples.items()):
        quarter = max(1, len(values) // 4)
        found[member] = {
            "second_quarter_mib": median(values[quarter : 2 * quarter] or values) / 2**20,
            "last_quarter_mib": median(values[-quarter:]) / 2**20,
        }
    return found


def print_tables(figures: dict[str, Any], violations: Sequence[Violation]) -> None:
    print(
        f"{figures['seconds']:.0f} s; {figures['sandboxes']} sandboxes, {figures['losses_reported']} reported"
    )
    print(f"as lost; {figures['lines_read']:,} lines read back\n")
    print(f"{'operation':12}{'ok':>8}{'fail':>8}{'unknown':>9}{'never':>7}{'p50 ms':>9}{'p99 ms':>9}")
    for name, row in figures["operations"].items():
        times = "".join(
            f"{row[key]:9.0f}" if row[key] is not None else f"{'':9}" for key in ("p50_ms", "p99_ms")
        )
        print(f"{name:12}{row['ok']:8}{row['fail']:8}{row['unknown']:9}{row['never']:7}{times}")
    print(f"\n{'error':22}{'times':>8}")
    for name, times in figures["errors"].items():
        print(f"{name:22}{times:8}")
    print(f"\n{'fault':42}{'times':>6}{'well after, p50 s':>20}{'at most, s':>12}")
    for name, row in figures["faults"].items():
        print(f"{name:42}{row['times']:6}{row['healed_p50_s']:20.1f}{row['healed_max_s']:12.1f}")
    print(f"\n{'member':12}{'2nd quarter, MiB':>18}{'last quarter, MiB':>19}")
    for name, row in figures["memory"].items():
        print(f"{name:12}{row['second_quarter_mib']:18.0f}{row['last_quarter_mib']:19.0f}")
    print(f"\nviolations: {figures['violations'] or 'none'}")
    for violation in violations[:VIOLATIONS_SHOWN]:
        print(f"  {violation.rule}: {violation.text}")
