"""The messages of the code interpreter."""

from __future__ import annotations

from sandlot.api.e2b.bodies import Body


class Execute(Body, rename=None, frozen=True):
    """``context_id`` and ``language``: at most one of them."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(Body, frozen=True):
    language: str | None = None
    cwd: str | None = None


class ContextBody(Body, frozen=True):
    id: str
    language: str
    cwd: str
