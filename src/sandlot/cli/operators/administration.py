"""Runs an administrator's requests against the server that a command names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import typer

from sandlot.cli.connection import server_url

if TYPE_CHECKING:
    from sandlot.client.http.administrator import Administrator

T = TypeVar("T")


def with_administrator(ctx: typer.Context, work: Callable[[Administrator], Awaitable[T]]) -> T:
    from sandlot.client.http.administrator import Administrator
    from sandlot.config.client_settings import client_settings

    async def run() -> T:
        settings = client_settings(await server_url(ctx.obj), ctx.obj.api_key)
        server = Administrator(settings.url, settings.api_key)
        try:
            return await work(server)
        finally:
            await server.close()

    return asyncio.run(run())
