"""The rules for sessions.

A thread has one sandbox at a time (I1), ended sessions stay ended (I4), and in the end the engine,
the directory and the API agree (I5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from bench.chaos.history import Ending
from bench.chaos.sightings import Observations, Sandbox, Sighting, Violation
from sandlot.domain.ids import first_workspace_of

LIVE_CONTAINER_STATES = frozenset({"running"})


def one_sandbox_at_a_time(observed: Observations) -> Iterator[Violation]:
    """A thread has one sandbox at a time.

    From a sandbox's first answer to the last question that it answered, it was certainly the
    thread's. No other sandbox may have answered in that time.
    """
    by_thread: dict[str, dict[Sandbox, list[Sighting]]] = defaultdict(dict)
    for sandbox, sightings in observed.alive().items():
        # A session without a thread counts as a thread of its own, shared only by its generations.
        by_thread[observed.threads.get(sandbox.session, sandbox.session)][sandbox] = sightings
    for thread, sandboxes in by_thread.items():
        for one, other in combinations(sandboxes, 2):
            both = _overlap(sandboxes[one], sandboxes[other]) or _overlap(sandboxes[other], sandboxes[one])
            if both:
                yield Violation("I1", f"{thread} had {one} and {other} at once: {both[0]} | {both[1]}")


def _overlap(one: list[Sighting], other: list[Sighting]) -> tuple[str, str] | None:
    first = min(one, key=lambda sighting: sighting.end)
    last = max(one, key=lambda sighting: sighting.begin)
    for sighting in other:
        if first.end <= sighting.begin and sighting.end <= last.begin:
            return sighting.what, last.what
    other_first = min(other, key=lambda sighting: sighting.end)
    other_last = max(other, key=lambda sighting: sighting.begin)
    if max(first.end, other_first.end) < min(last.begin, other_last.begin):
        return last.what, other_last.what
    return None


def generations_only_grow(observed: Observations) -> Iterator[Violation]:
    by_session: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in observed.sightings:
        by_session[sighting.sandbox.session].append(sighting)
    for sightings in by_session.values():
        answered = sorted(sightings, key=lambda sighting: sighting.end)
        highest: Sighting | None = None
        number = 0
        for sighting in sorted(sightings, key=lambda sighting: sighting.begin):
            while number < len(answered) and answered[number].end <= sighting.begin:
                if highest is None or answered[number].sandbox.generation > highest.sandbox.generation:
                    highest = answered[number]
                number += 1
            if highest is not None and sighting.sandbox.generation < highest.sandbox.generation:
                yield Violation("I1", f"a generation went back: {highest.what} | {sighting.what}")


def replaced_only_when_asked(observed: Observations) -> Iterator[Violation]:
    """A new generation needs a client that asked for it.

    A thread's next session needs a client that deleted the previous one.
    """
    replacing = [
        operation
        for operation in observed.history.operations
        if operation.call.replaces and not operation.did_nothing
    ]
    first: dict[Sandbox, Sighting] = {}
    for sighting in observed.sightings:
        before = first.get(sighting.sandbox)
        if before is None or sighting.end < before.end:
            first[sighting.sandbox] = sighting
    for sandbox, sighting in first.items():
        thread = observed.threads.get(sandbox.session)
        asked = sum(
            operation.begin_at < sighting.end
            and (
                operation.call.session == sandbox.session
                or (thread is not None and operation.call.thread == thread)
            )
            for operation in replacing
        )
        if asked < sandbox.generation - 1:
            yield Violation("I1", f"{sandbox} was replaced unasked: {sighting.what}")
    sessions: dict[str, list[Sighting]] = defaultdict(list)
    for sandbox, sighting in sorted(first.items(), key=lambda item: item[1].end):
        thread = observed.threads.get(sandbox.session)
        if thread is None:
            continue
        for earlier in sessions[thread]:
            if earlier.sandbox.session != sandbox.session and not observed.deleted_before(
                earlier.sandbox.session, sighting.end
            ):
                yield Violation(
                    "I1",
                    f"{thread} got another session although nobody deleted the first: {earlier.what} |"
                    f" {sighting.what}",
                )
        sessions[thread].append(sighting)


def lists_name_one_per_thread(observed: Observations) -> Iterator[Violation]:
    for operation in observed.history.called("list"):
        if operation.end is None or operation.end.sessions is None:
            continue
        threads = [listed.thread for listed in operation.end.sessions if listed.thread is not None]
        for thread in {thread for thread in threads if threads.count(thread) > 1}:
            yield Violation("I1", f"two sessions of {thread} in one list: {operation}")


def ended_stays_ended(observed: Observations) -> Iterator[Violation]:
    ended: dict[str, tuple[float, str]] = {}
    for operation in observed.history.operations:
        session, end = operation.call.session, operation.end
        if session is None or end is None:
            continue
        gone = end.code in {"session_ended", "not_found"}
        if gone and not observed.deleted_before(session, end.at):
            yield Violation("I4", f"a session is gone that nobody deleted: {operation}")
        if gone or (operation.call.do == "delete" and operation.ok):
            before = ended.get(session)
            if before is None or end.at < before[0]:
                ended[session] = (end.at, str(operation))
    for sighting in observed.sightings:
        before = ended.get(sighting.sandbox.session)
        if before is not None and sighting.begin > before[0]:
            yield Violation("I4", f"it had ended, and answers again: {before[1]} | {sighting.what}")


def ends_agree(observed: Observations) -> Iterator[Violation]:
    endings = [event.ending for event in observed.history.of_kind("end") if event.ending is not None]
    if not endings:
        yield Violation("I5", "the history has no end: nothing was compared")
        return
    ending = endings[-1]
    known = {sighting.sandbox.session for sighting in observed.sightings}
    for coordinator, rows in ending.listed.items():
        listed = {row.id: row for row in rows}
        for session in sorted(known - listed.keys()):
            if not observed.deleted_before(session, float("inf")):
                yield Violation("I5", f"{session} is not listed by {coordinator}, and nobody deleted it")
        for session in listed:
            if observed.deleted_at(session) is not None:
                yield Violation("I4", f"{session} was deleted, and is listed by {coordinator}")
    yield from disagreements(ending)
    for name in ending.left:
        yield Violation("I5", f"left behind: {name}")


def disagreements(ending: Ending) -> Iterator[Violation]:
    """Finds disagreements between the API, the directory and the engine."""
    for coordinator, rows in ending.listed.items():
        if {row.id: row.sandbox for row in rows} != dict(ending.directory):
            listed = sorted(row.id for row in rows)
            yield Violation("I5", f"{coordinator} lists {listed}, the directory {ending.directory}")
    sandboxes = {sandbox for sandbox in ending.directory.values() if sandbox is not None}
    states = {sandbox: state for found in ending.containers.values() for sandbox, state in found.items()}
    for sandbox in sorted(sandboxes):
        if states.get(sandbox) not in LIVE_CONTAINER_STATES:
            yield Violation("I5", f"{sandbox} of a session is {states.get(sandbox, 'not there')}")
    warm = {sandbox for found in ending.containers.values() for sandbox in found} - sandboxes
    kept = {first_workspace_of(sandbox) for sandbox in warm} | set(ending.workspaces.values())
    stored = {first_workspace_of(volume) for volumes in ending.volumes.values() for volume in volumes}
    for workspace in sorted(stored ^ kept):
        there = "belongs to nobody" if workspace in stored else "is gone"
        yield Violation("I5", f"workspace {workspace} {there}")
    for worker, found in ending.containers.items():
        beyond = len(found.keys() - sandboxes) - ending.warm[worker]
        if beyond != 0:
            yield Violation("I5", f"{worker} has {beyond} containers beyond its sessions and its pool")
