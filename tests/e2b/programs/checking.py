"""Runs the checks of a program, and counts which public functions of E2B's SDK they called.

A program of this folder runs in an environment that has E2B's SDK and nothing of ours. It prints one JSON object:
``checks`` by name, with an empty text for each that passed, and ``calls`` by function.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

CALLS: Counter[str] = Counter()


def count(frame: FrameType, event: str, _: Any) -> None:
    """Count calls into the SDK from outside of it. A coroutine counts when it begins."""
    if event != "call" or frame.f_back is None:
        return
    code, caller = frame.f_code, frame.f_back.f_code
    # Some functions are called on a class or on an object, through a wrapper.
    outside = PACKAGES not in caller.co_filename or caller.co_filename.endswith(WRAPPERS)
    name = code.co_qualname.replace("._cls_", ".")
    begins = frame.f_lasti <= BEGINS_AT.setdefault(code, frame.f_lasti)
    if is_sdk(code.co_filename) and outside and begins and "._" not in name:
        CALLS[name] += 1


BEGINS_AT: dict[CodeType, int] = {}
PACKAGES = "/site-packages/"
WRAPPERS = "/e2b/sandbox/utils.py"


def is_sdk(filename: str) -> bool:
    return f"{PACKAGES}e2b" in filename


def run(module: dict[str, Any], *arguments: Any) -> None:
    """Run each ``check_…`` of the module, in order, with the same arguments, and print the results."""
    checks: dict[str, Callable[..., Any]] = {
        name.removeprefix("check_"): each for name, each in module.items() if name.startswith("check_")
    }
    results: dict[str, str] = {}

    async def all_of_them() -> None:
        for name, check in checks.items():
            results[name] = await outcome(check)

    async def outcome(check: Callable[..., Any]) -> str:
        sys.setprofile(count)
        try:
            result = check(*arguments)
            if inspect.isawaitable(result):
                await asyncio.wait_for(result, 60)
        except BaseException:
            return traceback.format_exc()
        finally:
            sys.setprofile(None)
        return ""

    asyncio.run(all_of_them())
    print(json.dumps({"checks": results, "calls": CALLS}))


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any]) -> Any:
    """The error that a call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised where {kind} was expected")


async def raises_soon(kind: type[BaseException], call: Any) -> Any:
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised where {kind} was expected")
