"""docs/reference/events.md: every kind of event, from the tables in ``domain.history``."""

from __future__ import annotations

from typing import Final

from sandlot.domain.history.details import DETAILS
from sandlot.domain.history.events import Event, EventKind
from sandlot.reference.docstrings import explained, inline, own_docstring
from sandlot.reference.markdown import GENERATED, heading, page, paragraph, sentence, table

_HEAD: Final = f"""What the history records, and webhooks send. {GENERATED}

[The history](../howto/history.md) says how to read events, who may, and what is masked."""


def events_page() -> str:
    fields = explained(own_docstring(Event), Event.__dataclass_fields__).meanings
    meanings = explained(own_docstring(EventKind), [kind.value for kind in EventKind]).meanings
    return page(
        heading(1, "Events"),
        *(paragraph(text) for text in _HEAD.split("\n\n")),
        heading(2, "Fields"),
        paragraph("Every event has these fields. The names in `details` depend on the kind."),
        table(("field", "meaning"), ((f"`{name}`", sentence(inline(text))) for name, text in fields.items())),
        heading(2, "Kinds"),
        *(_kind(kind, meanings[kind.value]) for kind in EventKind),
    )


def _kind(kind: EventKind, meaning: str) -> str:
    rows = ((f"`{name}`", sentence(text)) for name, text in DETAILS[kind].items())
    details = table(("detail", "meaning"), rows) if DETAILS[kind] else paragraph("It has no details.")
    return page(heading(3, f"`{kind.value}`"), paragraph(sentence(inline(meaning))), details)
