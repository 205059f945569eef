"""Generates the seccomp profile of the runc tier from the readable list beside this file.

Docker's API takes a profile as JSON text inside ``SecurityOpt``. The engine's default profile
changes with the engine's version. This one changes only with Sandlot's version, and
``seccomp.toml`` gives a reason for each difference.
"""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from sandlot.domain.errors import Unsupported

# Only the native ABI. libseccomp kills a caller that uses another one (int 0x80, x32).
ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_MACHINE_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


def native_machine() -> str:
    machine = platform.machine().lower()
    return _MACHINE_NAMES.get(machine, machine)


@lru_cache(maxsize=4)
def seccomp_json(machine: str | None = None) -> str:
    """Returns the profile as one canonical line of JSON, ready for ``SecurityOpt``."""
    return json.dumps(seccomp_profile(machine or native_machine()), sort_keys=True, separators=(",", ":"))


def load_source() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("seccomp.toml").read_text("utf-8"))


def seccomp_profile(machine: str) -> dict[str, Any]:
    """Returns the profile in the form that the engine reads."""
    if machine not in ARCHITECTURES:
        raise Unsupported(f"No seccomp profile for {machine}. Supported: {', '.join(ARCHITECTURES)}.")
    source = load_source()
    _check_duplicates(source)
    allowed = [
        {"names": sorted(table["syscalls"]), "action": "SCMP_ACT_ALLOW"}
        for table in source["allow"]
        if machine in table.get("architectures", [machine])
    ]
    guarded = [
        {"names": table["syscalls"], "action": "SCMP_ACT_ALLOW", "args": arguments}
        for table in source["guarded"]
        for alternative in table["when"]
        for arguments in _expand(alternative)
    ]
    refused = [
        {"names": table["syscalls"], "action": "SCMP_ACT_ERRNO", "errnoRet": table["errno"]}
        for table in source["refused"]
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": source["default_errno"],
        "architectures": [ARCHITECTURES[machine]],
        "syscalls": allowed + guarded + refused,
    }


def _expand(alternative: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Converts one alternative of ``when`` into the engine's argument lists.

    Any of them allows the call.
    """
    plain = [_condition(condition) for condition in alternative if "low32_none_of" not in condition]
    negated = [condition for condition in alternative if "low32_none_of" in condition]
    if not negated:
        yield plain
        return
    if len(negated) > 1:
        raise ValueError("An alternative can have at most one low32_none_of.")
    index = negated[0]["arg"]
    for mask, value in _differing(negated[0]["low32_none_of"]):
        yield [*plain, _masked(index, mask, value)]


def _differing(refused: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns masks and values, of which a number has at least one exactly when it has none that is refused.

    libseccomp has "equal under a mask" but not "different under a mask". Two numbers differ exactly
    when at least one bit differs, so one rule for each bit means the same. For several refused
    numbers, a rule needs a differing bit for each, and libseccomp compares an argument once in a rule.
    """
    found = {(0, 0)}
    for mask, value in refused:
        bits = [1 << bit for bit in range(32) if mask >> bit & 1]
        found = {
            (known | bit, wanted | (~value & bit))
            for known, wanted in found
            for bit in bits
            if not known & bit or wanted & bit == ~value & bit
        }
    # A rule that another one includes adds nothing.
    return sorted(
        (mask, value)
        for mask, value in found
        if not any(
            other != mask and other & mask == other and value & other == wanted for other, wanted in found
        )
    )


def _condition(condition: Mapping[str, int]) -> dict[str, Any]:
    if "mask" in condition:
        return _masked(condition["arg"], condition["mask"], condition["equals"])
    return {"index": condition["arg"], "value": condition["equals"], "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, equals: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": equals, "op": "SCMP_CMP_MASKED_EQ"}


def _check_duplicates(source: Mapping[str, Any]) -> None:
    """Rejects a list that names a call twice: libseccomp would pick either of its rules."""
    seen: dict[str, str] = {}
    for kind in ("allow", "guarded", "refused", "removed"):
        for table in source[kind]:
            for name in table["syscalls"]:
                if name in seen:
                    raise ValueError(
                        f"seccomp.toml names {name} in both '{seen[name]}' and '{table['group']}'."
                    )
                seen[name] = table["group"]
