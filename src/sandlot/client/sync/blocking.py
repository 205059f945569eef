"""Makes blocking methods from async ones. They keep the parameters and docstrings."""

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
    """A blocking version of an async object, which runs on a background loop."""

    def __init_subclass__(cls) -> None:
        """The methods are this class's own, wherever the async ones were defined."""
        for name, member in vars(cls).items():
            if inspect.isfunction(member):
                member.__qualname__ = f"{cls.__qualname__}.{name}"

    def __init__(self, wrapped: A, loop: BackgroundLoop) -> None:
        self._wrapped = wrapped
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._wrapped).replace("<Async", "<", 1)


def _with_signature_of(method: Callable[..., Any]) -> Callable[[C], C]:
    """Copy the name, parameters and docstring of an async method, so that ``help`` shows them."""

    def decorate(call: C) -> C:
        functools.update_wrapper(call, method, assigned=("__name__",))
        call.__doc__ = _without_async(method.__doc__ or "")
        signature = inspect.signature(method)
        returns = _without_async(str(signature.return_annotation))
        call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return call

    return decorate


def _without_async(text: str) -> str:
    """Rewrite an async method's annotation or docstring for its blocking version."""
    text = re.sub(r"AsyncGenerator\[(\w+), None\]", r"Iterator[\1]", text)
    return text.replace("async with", "with").replace("Async", "").replace("Opening", "Session")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Make a blocking method from an async one."""

    @_with_signature_of(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._wrapped, *args, **kwargs))

    return call


def blocking_as(
    wrap: Callable[[Any, BackgroundLoop], T],
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[Facade[Any], P], T]:
    """Make a blocking method from one that returns an async object; this one returns its facade."""

    @_with_signature_of(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wrap(self._loop.run(method(self._wrapped, *args, **kwargs)), self._loop)

    return call


def blocking_self(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[F, P], F]:
    """Make a blocking method from one that returns ``self``."""

    @_with_signature_of(method)
    def call(self: F, /, *args: P.args, **kwargs: P.kwargs) -> F:
        self._loop.run(method(self._wrapped, *args, **kwargs))
        return self

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Facade[Any], P], Generator[R, None, None]]:
    """Make a generator method from an async one."""

    @_with_signature_of(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        return self._loop.iterate(method(self._wrapped, *args, **kwargs))

    return call


def entering(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterator[R]]],
) -> Callable[Concatenate[Facade[Any], P], AbstractContextManager[Iterator[R]]]:
    """Make a context manager method from an async one."""

    @_with_signature_of(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Iterator[R]]:
        return self._loop.enter(method(self._wrapped, *args, **kwargs))

    return call
