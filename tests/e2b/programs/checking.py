"""Runs the checks of a program, and counts which public functions of E2B's SDK they called.

A program of this folder runs in an environment that has E2B's SDK and nothing of ours. It prints one JSON object:
``checks`` by name, with an empty text for each that passed, and ``calls`` by function.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any

CALLS: Counter[str] = Counter()
CHECK_S = 150.0  # tells slow from never


def count(frame: FrameType, event: str, _: Any) -> None:
    """Count calls into the SDK from outside of it. A coroutine counts when it begins."""
    if event != "call" or frame.f_back is None:
        return
    code, caller = frame.f_code, frame.f_back.f_code
    if f"{PACKAGES}e2b" not in code.co_filename or "<" in code.co_qualname:
        return
    # Some functions are called on a class or on an object, through a wrapper.
    outside = PACKAGES not in caller.co_filename or caller.co_filename.endswith(WRAPPERS)
    begins = frame.f_lasti <= BEGINS_AT.setdefault(code, frame.f_lasti)
    if outside and begins and (called := public_call(frame)) is not None:
        CALLS[called] += 1


BEGINS_AT: dict[CodeType, int] = {}
PACKAGES = "/site-packages/"
WRAPPERS = "/e2b/sandbox/utils.py"


def public_call(frame: FrameType) -> str | None:
    """``async Commands.run``; None if it is no public method. Both SDKs have classes of the same names."""
    code = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else ""
    if first not in ("self", "cls"):
        return None if code.co_name.startswith("_") else called(frame.f_globals["__name__"], code.co_qualname)
    given = frame.f_locals[first]
    kind = given if isinstance(given, type) else type(given)
    name = public_names(kind).get(code)
    return None if name is None else called(kind.__module__, f"{kind.__name__}.{name}")


def called(module: str, name: str) -> str:
    return f"{'async' if 'async' in module else 'sync'} {name}"


@cache
def public_names(kind: type) -> dict[CodeType, str]:
    """Under which name each function of a class is called."""
    return {
        function.__code__: name
        for name in dir(kind)
        if not name.startswith("_")
        for function in functions_behind(kind, inspect.getattr_static(kind, name))
    }


def functions_behind(kind: type, attribute: Any) -> Iterator[FunctionType]:
    """One, or two if the name may be called on the class or on an object of it."""
    on_class = getattr(attribute, "class_method_name", "")
    for each in (
        attribute,
        getattr(attribute, "method", None),
        getattr(kind, on_class, None),
        getattr(attribute, "_static_fn", None),
        getattr(attribute, "_instance_fn", None),
    ):
        function = getattr(each, "__func__", each)
        if isinstance(function, FunctionType):
            yield function


def run(module: dict[str, Any], *arguments: Any) -> None:
    """Run each ``check_…`` of the module, in order, with the same arguments, and print the results."""
    checks: dict[str, Callable[..., Any]] = {
        name.removeprefix("check_"): each for name, each in module.items() if name.startswith("check_")
    }
    results: dict[str, str] = {}
    threading.setprofile(count)

    async def all_of_them() -> None:
        for name, check in checks.items():
            results[name] = await outcome(check)

    async def outcome(check: Callable[..., Any]) -> str:
        sys.setprofile(count)
        try:
            result = check(*arguments)
            if inspect.isawaitable(result):
                await asyncio.wait_for(result, CHECK_S)
        except BaseException:
            return traceback.format_exc()
        finally:
            sys.setprofile(None)
        return ""

    asyncio.run(all_of_them())
    print(json.dumps({"checks": results, "calls": CALLS}))


def caller(form: str) -> Callable[..., Awaitable[Any]]:
    """How to call a function of the ``sync`` or the ``async`` SDK. The first must not hold up this loop."""

    async def got(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if form == "sync":
            return await asyncio.to_thread(call, *arguments, **options)
        return await call(*arguments, **options)

    return got


def eventually(check: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What the check gives, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
    return found


async def soon(check: Callable[[], Any], seconds: float = 20.0) -> Any:
    """As ``eventually``, while the loop runs on."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.05)
    return found


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
