"""The Python that the fake understands without a script: a few statements, and no more than it can keep.

Names, numbers, texts, lists, arithmetic and comparisons; ``print``, ``len``, ``str``, ``repr``, ``sum`` and
``time.sleep``; assignments, ``import time`` and ``raise``. Anything else is an error that says so.
"""

from __future__ import annotations

import ast
import asyncio
import operator
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sandlot.domain.code.events import CellData, CellError, CellEvent, CellText

Emit = Callable[[CellEvent], Awaitable[None]]

_OPERATORS: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"len": len, "str": str, "repr": repr, "sum": sum}
_ERRORS: Final = {
    kind.__name__: kind
    for kind in (Exception, ValueError, TypeError, KeyError, RuntimeError, ZeroDivisionError)
}


class NotUnderstoodError(Exception):
    """The code needs a real Python."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__(
            f"FakeSandlot runs only very small Python, and no {type(node).__name__}. Script this code with "
            "FakeSandlot.on_cell()."
        )


class SmallPython:
    """One interpreter, whose variables stay."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    async def run(self, code: str, emit: Emit) -> int:
        """Run code; return the exit code that its exec gets."""
        last = None
        try:
            for statement in ast.parse(code).body:
                last = await self._run(statement, emit)
        except Exception as error:  # noqa: BLE001 (whatever the code raises is the cell's error)
            await emit(CellError(type(error).__name__, str(error), (f"{type(error).__name__}: {error}",)))
            return 1
        if last is not None:
            await emit(CellData({"text/plain": repr(last)}, main=True))
        return 0

    async def _run(self, statement: ast.stmt, emit: Emit) -> Any:
        """Returns the value of an expression; None for any other statement."""
        match statement:
            case ast.Expr(value=value):
                return await self._value(value, emit)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._names[name] = await self._value(value, emit)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if type(op) in _OPERATORS:
                self._names[name] = _OPERATORS[type(op)](self._look_up(name), await self._value(value, emit))
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=arguments)) if name in _ERRORS:
                raise _ERRORS[name](*[await self._value(each, emit) for each in arguments])
            case ast.Import(names=[ast.alias(name="time", asname=None)]) | ast.Pass():
                pass
            case _:
                raise NotUnderstoodError(statement)
        return None

    async def _value(self, node: ast.expr, emit: Emit) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._look_up(name)
            case ast.List(elts=items):
                return [await self._value(item, emit) for item in items]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](await self._value(left, emit), await self._value(right, emit))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](await self._value(left, emit), await self._value(right, emit))
            case ast.Call(func=ast.Name(id="print"), args=arguments, keywords=[]):
                texts = [str(await self._value(each, emit)) for each in arguments]
                await emit(CellText("stdout", " ".join(texts) + "\n"))
                return None
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*[await self._value(each, emit) for each in arguments])
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time"), attr="sleep"), args=[seconds], keywords=[]
            ):
                await asyncio.sleep(await self._value(seconds, emit))
                return None
        raise NotUnderstoodError(node)

    def _look_up(self, name: str) -> Any:
        if name not in self._names:
            raise NameError(f"name {name!r} is not defined")
        return self._names[name]
