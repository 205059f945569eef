"""Methods of the facade, made from those of the async classes. Parameters and docs are theirs."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sandlot.client.sync.background import BackgroundLoop

P = ParamSpec("P")
A = TypeVar("A")
C = TypeVar("C", bound=Callable[..., Any])
F = TypeVar("F", bound="Facade[Any]")
R = TypeVar("R")
T = TypeVar("T")


class Facade(Generic[A]):
    """An async object and the loop that it is used on."""

    def __init__(self, behind: A, loop: BackgroundLoop) -> None:
        self._behind = behind
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._behind).replace("<Async", "<", 1)


def _like(method: Callable[..., Any]) -> Callable[[C], C]:
    """Name, parameters and doc of an async method, in the words of the facade: what ``help`` shows."""

    def dress(call: C) -> C:
        functools.update_wrapper(call, method, assigned=("__name__",))
        call.__qualname__ = _without_async(method.__qualname__)
        call.__doc__ = _without_async(method.__doc__ or "")
        signature = inspect.signature(method)
        returns = _without_async(str(signature.return_annotation))
        call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return call

    return dress


def _without_async(text: str) -> str:
    text = re.sub(r"AsyncGenerator\[(\w+), None\]", r"Iterator[\1]", text)
    return text.replace("async with", "with").replace("Async", "").replace("Opening", "Session")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    @_like(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._behind, *args, **kwargs))

    return call


def blocking_as(
    wrap: Callable[[Any, BackgroundLoop], T],
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[Facade[Any], P], T]:
    """Of a method that returns an async object: here its facade."""

    @_like(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wrap(self._loop.run(method(self._behind, *args, **kwargs)), self._loop)

    return call


def blocking_self(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[F, P], F]:
    """Of a method that returns its own object."""

    @_like(method)
    def call(self: F, /, *args: P.args, **kwargs: P.kwargs) -> F:
        self._loop.run(method(self._behind, *args, **kwargs))
        return self

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Facade[Any], P], Generator[R, None, None]]:
    @_like(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        return self._loop.iterate(method(self._behind, *args, **kwargs))

    return call


def entering(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterator[R]]],
) -> Callable[Concatenate[Facade[Any], P], AbstractContextManager[Iterator[R]]]:
    @_like(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Iterator[R]]:
        return self._loop.enter(method(self._behind, *args, **kwargs))

    return call
