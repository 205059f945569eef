"""``webhooks create|list|delete|dead-letters|redeliver``: where a tenant's events are sent."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.operators.administration import with_administrator

if TYPE_CHECKING:
    from sandlot.client.http.administrator import Administrator
    from sandlot.wire.webhook_bodies import DeadLetterPageBody

app = typer.Typer(
    help="Send events to your own servers.\n\nA webhook sends the events of your tenant, signed, as they are "
    "recorded. These commands need a key with the scope admin.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

WebhookId = Annotated[
    str, typer.Argument(metavar="WEBHOOK_ID", help="The webhook's id, as `sandlot webhooks list` shows it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send the events: https://HOST/PATH.")],
    events: Annotated[
        list[str],
        typer.Option(
            "--event",
            metavar="TYPE",
            help="Send this type of event: session.created, session.ended, session.lost, exec.ended and the "
            "other kinds of the history. Can be repeated.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Create a webhook and print its secret.

    The secret is shown once. Your server verifies deliveries with it: docs/howto/webhooks.md.
    """
    from sandlot.cli.terminal import display
    from sandlot.wire.webhook_bodies import CreateWebhookBody

    body = CreateWebhookBody(url, events)
    new = with_administrator(ctx, lambda server: server.create_webhook(body))
    if as_json:
        display.print_json(new)
        return
    display.note("Keep this secret now: it is not shown again.")
    print(new.secret)
    display.note(f"Webhook {new.webhook.id} sends {', '.join(new.webhook.events)} from now on.")


@app.command("list")
def list_webhooks(ctx: typer.Context, as_json: Json = False) -> None:
    """List webhooks and how they are doing."""
    from sandlot.cli.terminal import display

    webhooks = with_administrator(ctx, lambda server: server.webhooks())
    if as_json:
        display.print_json(webhooks)
        return
    display.print_table(
        ("WEBHOOK ID", "URL", "EVENTS", "STATE", "DELIVERED", "DEAD LETTERS", "MISSED", "LAST ERROR"),
        [
            (
                webhook.id,
                webhook.url,
                " ".join(webhook.events),
                webhook.state,
                str(webhook.delivered),
                str(webhook.dead_letters),
                str(webhook.missed),
                webhook.error,
            )
            for webhook in webhooks
        ],
        unwrapped="WEBHOOK ID",
    )
    _note_missing({worker for webhook in webhooks for worker in webhook.missing_workers})


@app.command()
def delete(
    ctx: typer.Context,
    webhooks: Annotated[list[str], typer.Argument(metavar="WEBHOOK_ID...", help="The webhooks' ids.")],
) -> None:
    """Delete webhooks and their dead letters."""

    async def work(server: Administrator) -> None:
        for webhook in webhooks:
            await server.delete_webhook(webhook)
            print(f"{webhook} is deleted")

    with_administrator(ctx, work)


@app.command("dead-letters")
def dead_letters(ctx: typer.Context, webhook: WebhookId, as_json: Json = False) -> None:
    """List the deliveries that were given up."""
    from sandlot.cli.terminal import display

    async def work(server: Administrator) -> list[DeadLetterPageBody]:
        return [page async for page in server.dead_letters(webhook)]

    pages = with_administrator(ctx, work)
    letters = [letter for page in pages for letter in page.dead_letters]
    _note_missing({worker for page in pages for worker in page.missing_workers})
    if as_json:
        display.print_json(letters)
        return
    display.print_table(
        ("DELIVERY ID", "TYPE", "EVENT ID", "ATTEMPTS", "FAILED", "ERROR"),
        [
            (
                letter.id,
                letter.type,
                letter.event_id,
                str(letter.attempts),
                display.timestamp(letter.failed_at),
                letter.error,
            )
            for letter in letters
        ],
        unwrapped="DELIVERY ID",
    )


@app.command()
def redeliver(ctx: typer.Context, webhook: WebhookId) -> None:
    """Try all dead letters of a webhook once more.

    Those that fail again stay in the list.
    """
    started = with_administrator(ctx, lambda server: server.redeliver(webhook))
    print(f"redelivering {started.redelivering}")
    _note_missing(started.missing_workers)


def _note_missing(workers: Collection[str]) -> None:
    from sandlot.cli.terminal import display

    if workers:
        display.note(
            f"These workers did not answer, so their dead letters are missing: {', '.join(sorted(workers))}."
        )
