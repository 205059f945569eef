"""A session's previews: links to what listens on the ports of its sandbox."""

from __future__ import annotations

from sandlot.domain.errors import Unsupported
from sandlot.domain.network.ports import ExposePort, Exposure, Preview
from sandlot.domain.service import SandboxService


class AsyncSessionPorts:
    """The part of ``AsyncSession`` that is about ports."""

    _service: SandboxService
    _id: str

    async def expose(
        self, port: int, *, public: bool = False, expires_s: float | None = None, keep_prefix: bool = False
    ) -> Preview:
        """Let people see what a program in the sandbox serves on a port, by the ``url`` of the result.

        Whoever has the URL can see it for a day, or for ``expires_s`` seconds, until ``unexpose`` or the
        session's end. ``public``: no link is needed, and nothing expires. Exposing a port again returns a new
        link; earlier ones stay valid.

        ``keep_prefix``: if the URL has a path, give the program the whole path of each request. Use it for
        programs that are told where they are served, such as ``vite --base``, with the result's ``prefix``.
        """
        preview = await self._service.expose_port(
            self._id, ExposePort(port, public=public, expires_s=expires_s, keep_prefix=keep_prefix)
        )
        if not preview.url:
            await self._service.unexpose_port(self._id, port)
            raise Unsupported(
                "This service serves no previews: its operator has switched them off, or it is a worker in "
                "this program. Run `sandlot serve`, and use a client of that server."
            )
        return preview

    async def unexpose(self, port: int) -> None:
        """End a port's preview: all its links, and the connections of its visitors. Twice is no error."""
        await self._service.unexpose_port(self._id, port)

    async def previews(self) -> list[Exposure]:
        """List the exposed ports."""
        return list(await self._service.list_exposed(self._id))
