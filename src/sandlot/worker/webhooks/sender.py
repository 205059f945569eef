"""Sends one delivery, and reaches no address that was not checked.

The name is resolved once for each connection, all of its addresses are checked, and the connection goes to
one of these. So a name that resolves to another address a moment later gains nothing. The name itself is
still used for TLS: the certificate must be the receiver's. No proxy of the environment is used, and no
redirect is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import httpcore
import httpx
import structlog

from sandlot import __version__
from sandlot.domain.network.addresses import Networks
from sandlot.domain.webhooks.addresses import refusal_of
from sandlot.domain.webhooks.attempts import Outcome, failed, outcome_of
from sandlot.domain.webhooks.signing import signed_headers
from sandlot.domain.webhooks.webhook import Webhook
from sandlot.worker.network.names import Names, connect_to_one, reason_of
from sandlot.worker.webhooks.options import WebhookOptions

log = structlog.get_logger("sandlot.webhooks")

CONNECT_TIMEOUT_S: Final = 5.0
# Of an answer's body, which no one reads: enough to use the connection again.
MAX_READ_BYTES: Final = 4096
READ_FOR_S: Final = 1.0
# Less than receivers keep an idle connection, so that it does not end while a delivery is on its way.
KEEP_ALIVE_S: Final = 2.0
# Threads that resolve names.
RESOLVERS: Final = 8


class Refused(Exception):
    """The address may not be sent to."""


class Sender:
    def __init__(self, options: WebhookOptions) -> None:
        self._timeout_s = options.timeout_s
        self._names = Names(RESOLVERS, "webhooks")
        self._pools = {
            scheme: httpcore.AsyncConnectionPool(
                ssl_context=_tls() if scheme == "https" else None,
                max_connections=options.at_once,
                keepalive_expiry=KEEP_ALIVE_S,
                network_backend=CheckedConnections(options.allowed, self._names, encrypted=scheme == "https"),
            )
            for scheme in ("http", "https")
        }

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()
        self._names.close()

    async def send(
        self, webhook: Webhook, delivery_id: str, body: bytes, clock: Callable[[], float] = time.time
    ) -> Outcome:
        headers = {
            **signed_headers(webhook.secret, delivery_id, int(clock()), body),
            "content-type": "application/json",
            "user-agent": f"sandlot/{__version__}",
        }
        pool = self._pools[webhook.url.partition(":")[0].lower()]
        try:
            # Not httpcore's own timeouts: each is for one step, and a receiver can make many steps.
            async with asyncio.timeout(self._timeout_s) as limit:
                async with pool.stream(
                    "POST", webhook.url, headers=list(headers.items()), content=body
                ) as answer:
                    limit.reschedule(None)
                    await _drain(answer)
                    return outcome_of(answer.status, _location(answer))
        except TimeoutError:
            return failed(f"The receiver did not answer within {self._timeout_s:g} s.")
        except (httpcore.TimeoutException, httpcore.NetworkError) as error:
            return failed(f"The connection to the receiver failed: {_reason(error)}.")
        except httpcore.ProtocolError as error:
            return failed(f"The receiver does not speak HTTP: {_reason(error)}.")
        except Refused as error:
            return failed(str(error))
        except Exception:
            # Counted like any other failure: else this event would hold up the webhook for ever.
            log.exception("cannot send a webhook's delivery", webhook=webhook.id)
            return failed("The server could not send the delivery. The operator finds the reason in its log.")


class CheckedConnections(httpcore.AsyncNetworkBackend):
    """``encrypted``: whether TLS follows on each connection."""

    def __init__(self, allowed: Networks, names: Names, *, encrypted: bool) -> None:
        self._allowed = allowed
        self._names = names
        self._encrypted = encrypted
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._names.resolve(host, port, self._check)
        except OSError as error:
            raise httpcore.ConnectError("its name cannot be resolved") from error
        return await connect_to_one(
            addresses,
            lambda address: self._plain.connect_tcp(
                address, port, CONNECT_TIMEOUT_S, local_address, socket_options
            ),
            (httpcore.ConnectError, httpcore.ConnectTimeout),
        )

    def _check(self, address: str) -> None:
        if (refusal := refusal_of(address, self._allowed, encrypted=self._encrypted)) is not None:
            raise Refused(refusal)


def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def _drain(answer: httpcore.Response) -> None:
    read = 0
    with contextlib.suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(READ_FOR_S):
            async for piece in answer.aiter_stream():
                read += len(piece)
                if read > MAX_READ_BYTES:
                    return


def _location(answer: httpcore.Response) -> str:
    found = next((value for name, value in answer.headers if name.lower() == b"location"), b"")
    return found.decode("ascii", "replace")


def _reason(error: BaseException) -> str:
    """What happened, without the address: a tenant need not know how names resolve on the server."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return str(getattr(cause, "verify_message", "") or cause.reason or "TLS failed")
        if isinstance(cause, OSError) and cause.errno:
            return reason_of(cause)
        cause = cause.__cause__ or cause.__context__
    return str(error).removesuffix(".") or type(error).__name__
