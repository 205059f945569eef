"""Methods of the facade, made from those of the async classes. Parameters and docs are theirs."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sandlot.client.sync.background import BackgroundLoop

P = ParamSpec("P")
A = TypeVar("A")
F = TypeVar("F", bound="Facade[Any]")
R = TypeVar("R")
T = TypeVar("T")


class Facade(Generic[A]):
    """An async object and the loop that it is used on."""

    def __init__(self, behind: A, loop: BackgroundLoop) -> None:
        self._behind = behind
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._behind)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._behind, *args, **kwargs))

    return call


def blocking_as(
    wrap: Callable[[Any, BackgroundLoop], T],
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[Facade[Any], P], T]:
    """Of a method that returns an async object: here its facade."""

    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wrap(self._loop.run(method(self._behind, *args, **kwargs)), self._loop)

    return call


def blocking_self(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[F, P], F]:
    """Of a method that returns its own object."""

    @functools.wraps(method)
    def call(self: F, /, *args: P.args, **kwargs: P.kwargs) -> F:
        self._loop.run(method(self._behind, *args, **kwargs))
        return self

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Facade[Any], P], Generator[R, None, None]]:
    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        return self._loop.iterate(method(self._behind, *args, **kwargs))

    return call


def entering(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterator[R]]],
) -> Callable[Concatenate[Facade[Any], P], AbstractContextManager[Iterator[R]]]:
    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Iterator[R]]:
        return self._loop.enter(method(self._behind, *args, **kwargs))

    return call
