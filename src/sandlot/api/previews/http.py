"""One HTTP request of a visitor, passed on to a program in a sandbox, and its answer.

Each request has a connection of its own to the program. h11 writes the request and reads the answer, so
nothing that one message leaves behind can be taken for a part of another.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import h11
from starlette.exceptions import HTTPException
from starlette.types import Scope, Send

from sandlot.api.edge.request_body import BoundedBody
from sandlot.api.previews.headers import for_program, for_visitor, length_of
from sandlot.api.previews.options import PreviewOptions
from sandlot.api.previews.pages import Refused, broken_answer, refusal_of
from sandlot.api.previews.visits import Visit
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import SandlotError, TooLarge
from sandlot.wire.network.http_headers import framing

HEAD_PIECE_BYTES: Final = 4096


class HttpVisit:
    """Call ``run`` once. It raises ``Refused`` if the visitor has got no answer yet."""

    def __init__(
        self,
        scope: Scope,
        body: BoundedBody,
        send: Send,
        stream: ByteStream,
        visit: Visit,
        options: PreviewOptions,
        *,
        authorization: bool,
    ) -> None:
        self._scope = scope
        self._body = body
        self._send = send
        self._stream = stream
        self._visit = visit
        self._options = options
        self._authorization = authorization
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=options.max_head_bytes)
        self._limit = asyncio.timeout(options.idle_s)
        self._refused: Refused | None = None  # what was wrong with the request's body
        self._visitor_gone = False
        self._in_head = True
        self._unread = b""

    async def run(self) -> None:
        request = self._request()  # before anything is sent: h11 refuses what is not valid HTTP
        sending = asyncio.ensure_future(self._send_request(request))
        try:
            async with self._limit:
                await self._send_answer()
        except TimeoutError:
            if self._visitor_gone:
                return
            raise self._refused or Refused(
                504, "No answer", f"The program on port {self._visit.port} did not answer in time."
            ) from None
        except (h11.ProtocolError, OSError):
            raise self._refused or broken_answer(self._visit.port) from None
        except SandlotError as error:
            raise self._refused or refusal_of(error, self._visit.port) from None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    # --- the request --------------------------------------------------------------------------

    def _request(self) -> bytes:
        scope, place = self._scope, self._visit.place
        body_framing = framing(scope["headers"])
        try:
            data = self._http.send(
                h11.Request(
                    method=scope["method"],
                    target=self._visit.target,
                    headers=[
                        (b"host", place.local),
                        *for_program(scope["headers"], place, authorization=self._authorization),
                        *body_framing,
                        (b"connection", b"close"),
                    ],
                )
            )
        except h11.LocalProtocolError:
            raise Refused(400, "Bad request", "The request is not valid HTTP.") from None
        assert data is not None
        return data

    async def _send_request(self, head: bytes) -> None:
        """Afterwards it waits until the visitor is gone, and then ends the visit."""
        try:
            await self._stream.send(head)
            while not self._body.complete:
                message = await self._body.receive()
                if message["type"] == "http.disconnect":
                    return self._leave()
                if data := message.get("body", b""):
                    await self._stream.send(self._http.send(h11.Data(data)) or b"")
                    self._touch()
            # Not ``send_end``: a program may take the end of its input for the end of its visitor.
            await self._stream.send(self._http.send(h11.EndOfMessage()) or b"")
            while (await self._body.receive())["type"] != "http.disconnect":
                pass
            self._leave()
        except TooLarge as error:
            self._end(Refused(413, "Too large", error.message))
        except HTTPException as error:
            self._end(Refused(error.status_code, "Too slow", error.detail))
        except h11.LocalProtocolError:
            self._end(Refused(400, "Bad request", "The request's body is not as long as it says."))
        except (SandlotError, OSError):
            pass  # the program is gone, which its answer shows too
        return None

    def _leave(self) -> None:
        self._visitor_gone = True
        self._end(None)

    def _end(self, refused: Refused | None) -> None:
        self._refused = refused
        with suppress(RuntimeError):  # the answer has ended in the same moment
            self._limit.reschedule(0)

    # --- the answer ---------------------------------------------------------------------------

    async def _send_answer(self) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._read_more()
            elif isinstance(event, h11.Response):
                self._in_head = False
                await self._send(
                    {
                        "type": "http.response.start",
                        "status": event.status_code,
                        "headers": [
                            *for_visitor(event.headers, self._visit.place),
                            *length_of(event.status_code, event.headers),
                        ],
                    }
                )
            elif isinstance(event, h11.Data):
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
                self._touch()
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the program closed the connection")

    async def _read_more(self) -> None:
        """A head is read in small pieces: h11 bounds one only as long as it is not complete."""
        if not self._unread:
            self._unread = await self._stream.receive()
            self._touch()
        size = HEAD_PIECE_BYTES if self._in_head else len(self._unread)
        data, self._unread = self._unread[:size], self._unread[size:]
        self._http.receive_data(data)

    def _touch(self) -> None:
        if not self._limit.expired() and not self._visitor_gone and self._refused is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._options.idle_s)
