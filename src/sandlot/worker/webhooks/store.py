"""Webhooks on disk: what each one is, how far it has come in the history, and its dead letters.

A machine that crashes may lose the last moves of a cursor. Then some deliveries are made again, with the same
ids. It loses no webhook and no deletion: their commits are followed by a checkpoint, which syncs the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from sandlot.domain.webhooks import webhook as limits
from sandlot.domain.webhooks.webhook import (
    DeadLetter,
    Progress,
    Webhook,
    too_many,
    too_many_of_tenant,
)
from sandlot.worker.store.sqlite_file import SqliteFile

FILE_NAME: Final = "webhooks.sqlite3"

_WEBHOOKS: Final = """
CREATE TABLE webhooks (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, webhook BLOB NOT NULL, cursor_us INTEGER NOT NULL,
    delivered INTEGER NOT NULL DEFAULT 0, delivered_at REAL, attempts INTEGER NOT NULL DEFAULT 0,
    retry_at REAL, error TEXT NOT NULL DEFAULT '', missed INTEGER NOT NULL DEFAULT 0, disabled_at REAL
) STRICT;
CREATE INDEX webhooks_of_tenant ON webhooks (tenant, id);
CREATE TABLE dead_letters (
    webhook TEXT NOT NULL, time_us INTEGER NOT NULL, id TEXT NOT NULL, event_id TEXT NOT NULL,
    kind TEXT NOT NULL, attempts INTEGER NOT NULL, error TEXT NOT NULL, failed_at REAL NOT NULL,
    due INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL, PRIMARY KEY (webhook, time_us)
) STRICT;
"""
_PROGRESS: Final = (
    "SELECT webhook, cursor_us, delivered, delivered_at, attempts, retry_at, error, missed, disabled_at, "
    "(SELECT count(*) FROM dead_letters WHERE dead_letters.webhook = webhooks.id) FROM webhooks"
)
_LETTER: Final = "SELECT id, time_us, event_id, kind, attempts, error, failed_at, due"
# Each says that the event that a webhook was at is done: the next one has had no attempts.
_DELIVERED: Final = (
    "UPDATE webhooks SET cursor_us = max(cursor_us, ?), attempts = 0, retry_at = NULL, "
    "delivered = delivered + 1, delivered_at = ?, error = '' WHERE id = ?"
)
_GIVEN_UP: Final = (
    "UPDATE webhooks SET cursor_us = max(cursor_us, ?), attempts = 0, retry_at = NULL, "
    "error = ?, missed = missed + ? WHERE id = ?"
)
_SKIPPED: Final = (
    "UPDATE webhooks SET cursor_us = max(cursor_us, ?), attempts = 0, retry_at = NULL, "
    "missed = missed + ? WHERE id = ?"
)
_REDELIVERED: Final = (
    "UPDATE webhooks SET delivered = delivered + 1, delivered_at = ?, error = '' WHERE id = ?"
)
_FORGET_OLDEST: Final = (
    "DELETE FROM dead_letters WHERE webhook = ?1 AND time_us IN "
    "(SELECT time_us FROM dead_letters WHERE webhook = ?1 ORDER BY time_us DESC LIMIT -1 OFFSET ?2)"
)


class WebhookStore(SqliteFile):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (_WEBHOOKS,))

    # --- what there is ------------------------------------------------------------------------

    async def add(self, webhook: Webhook, cursor_us: int) -> None:
        def work(database: sqlite3.Connection) -> None:
            count = "SELECT count(*) FROM webhooks"
            if database.execute(count).fetchone()[0] >= limits.MAX_WEBHOOKS:
                raise too_many()
            of_tenant = database.execute(f"{count} WHERE tenant = ?", (webhook.tenant,)).fetchone()[0]
            if of_tenant >= limits.MAX_WEBHOOKS_OF_TENANT:
                raise too_many_of_tenant()
            database.execute(
                "INSERT INTO webhooks (id, tenant, webhook, cursor_us) VALUES (?, ?, ?, ?)",
                (webhook.id, webhook.tenant, msgspec.json.encode(webhook), cursor_us),
            )

        await self._transaction(work)
        await self._on_thread(self._sync)

    async def delete(self, webhook_id: str) -> None:
        await self._write(
            [
                ("DELETE FROM dead_letters WHERE webhook = ?", (webhook_id,)),
                ("DELETE FROM webhooks WHERE id = ?", (webhook_id,)),
            ]
        )
        await self._on_thread(self._sync)

    async def all(self, tenant: str | None = None) -> Sequence[tuple[Webhook, Progress]]:
        """In the order of their creation. ``tenant`` None: of all tenants."""
        found = await self._reading(
            lambda: self._rows(f"{_PROGRESS} WHERE ?1 IS NULL OR tenant = ?1", (tenant,))
        )
        return sorted(map(_known, found), key=lambda known: known[0].created_at)

    async def get(self, webhook_id: str) -> tuple[Webhook, Progress] | None:
        found = await self._reading(lambda: self._rows(f"{_PROGRESS} WHERE id = ?", (webhook_id,)))
        return _known(found[0]) if found else None

    async def last_us(self) -> int:
        """The time of the newest event that any webhook has passed."""
        [(last_us,)] = await self._reading(
            lambda: self._rows("SELECT coalesce(max(cursor_us), 0) FROM webhooks")
        )
        return int(last_us)

    # --- deliveries ---------------------------------------------------------------------------

    async def delivered(self, webhook_id: str, time_us: int, at: float) -> None:
        """The receiver accepted the event of this time."""
        await self._write([(_DELIVERED, (time_us, at, webhook_id))])

    async def failed(self, webhook_id: str, attempts: int, retry_at: float, error: str) -> None:
        await self._write(
            [
                (
                    "UPDATE webhooks SET attempts = ?, retry_at = ?, error = ? WHERE id = ?",
                    (attempts, retry_at, error, webhook_id),
                )
            ]
        )

    async def give_up(self, webhook_id: str, letter: DeadLetter) -> None:
        """Keep a dead letter, and go on with the next event."""

        def work(database: sqlite3.Connection) -> None:
            database.execute(
                "INSERT OR REPLACE INTO dead_letters VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
                (
                    webhook_id,
                    letter.time_us,
                    letter.id,
                    letter.event_id,
                    letter.kind,
                    letter.attempts,
                    letter.error,
                    letter.failed_at,
                    letter.body,
                ),
            )
            forgotten = database.execute(_FORGET_OLDEST, (webhook_id, limits.MAX_DEAD_LETTERS)).rowcount
            database.execute(_GIVEN_UP, (letter.time_us, letter.error, forgotten, webhook_id))

        await self._transaction(work)

    async def disable(self, webhook_id: str, at: float, error: str) -> None:
        await self._write(
            [("UPDATE webhooks SET disabled_at = ?, error = ? WHERE id = ?", (at, error, webhook_id))]
        )

    async def skip(self, events: Iterable[tuple[int, str, str]]) -> None:
        """Pass the events that are about to be deleted from the history, and count those not delivered.

        ``events``: time, tenant and kind of each. The cursor moves with the count, so that the same call
        again counts nothing.
        """
        by_tenant: dict[str, list[tuple[int, str]]] = {}
        for time_us, tenant, kind in events:
            by_tenant.setdefault(tenant, []).append((time_us, kind))

        def work(database: sqlite3.Connection) -> None:
            for tenant, deleted in by_tenant.items():
                rows = database.execute(
                    "SELECT id, webhook, cursor_us FROM webhooks WHERE tenant = ? AND disabled_at IS NULL",
                    (tenant,),
                ).fetchall()
                for webhook_id, stored, cursor_us in rows:
                    kinds = _webhook(stored).events
                    missed = [at for at, kind in deleted if at > cursor_us and kind in kinds]
                    if missed:
                        database.execute(_SKIPPED, (max(missed), len(missed), webhook_id))

        await self._transaction(work)

    # --- dead letters -------------------------------------------------------------------------

    async def dead_letters(self, webhook_id: str, after_us: int, limit: int) -> list[DeadLetter]:
        """Oldest first, without their bodies."""
        rows = await self._reading(
            lambda: self._rows(
                f"{_LETTER} FROM dead_letters WHERE webhook = ? AND time_us > ? ORDER BY time_us LIMIT ?",
                (webhook_id, after_us, limit),
            )
        )
        return [_letter(row) for row in rows]

    async def mark_due(self, webhook_id: str) -> int:
        """Have all dead letters tried again. Returns how many there are."""

        def work(database: sqlite3.Connection) -> int:
            return database.execute(
                "UPDATE dead_letters SET due = 1 WHERE webhook = ?", (webhook_id,)
            ).rowcount

        return await self._transaction(work)

    async def next_due(self, webhook_id: str) -> DeadLetter | None:
        """The oldest dead letter that is to be tried again, with its body."""
        rows = await self._reading(
            lambda: self._rows(
                f"{_LETTER}, body FROM dead_letters WHERE webhook = ? AND due ORDER BY time_us LIMIT 1",
                (webhook_id,),
            )
        )
        return replace(_letter(rows[0]), body=rows[0][8]) if rows else None

    async def redelivered(self, webhook_id: str, letter: DeadLetter, at: float) -> None:
        await self._write(
            [
                (
                    "DELETE FROM dead_letters WHERE webhook = ? AND time_us = ?",
                    (webhook_id, letter.time_us),
                ),
                (_REDELIVERED, (at, webhook_id)),
            ]
        )

    async def failed_again(self, webhook_id: str, letter: DeadLetter, at: float, error: str) -> None:
        await self._write(
            [
                (
                    "UPDATE dead_letters SET due = 0, attempts = attempts + 1, error = ?, failed_at = ? "
                    "WHERE webhook = ? AND time_us = ?",
                    (error, at, webhook_id, letter.time_us),
                )
            ]
        )

    # --- on the thread ------------------------------------------------------------------------

    def _sync(self) -> None:
        """Also takes the secrets of deleted webhooks out of the write-ahead log."""
        try:
            self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise self._problem(error) from error


def _webhook(stored: bytes) -> Webhook:
    return msgspec.json.decode(stored, type=Webhook)


def _known(row: tuple[Any, ...]) -> tuple[Webhook, Progress]:
    return _webhook(row[0]), Progress(*row[1:])


def _letter(row: tuple[Any, ...]) -> DeadLetter:
    delivery_id, time_us, event_id, kind, attempts, error, failed_at, due = row[:8]
    return DeadLetter(delivery_id, time_us, event_id, kind, attempts, error, failed_at, due=bool(due))
