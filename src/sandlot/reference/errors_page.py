"""docs/reference/errors.md: every error, from the docstrings in ``domain.errors`` and the statuses in
``wire.error_codes``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from sandlot.client.result import CommandFailed
from sandlot.domain.errors import FILE_REASONS, FileProblem, SandlotError, Unavailable
from sandlot.reference.docstrings import as_markdown, explained, first_sentence, inline, own_docstring
from sandlot.reference.markdown import GENERATED, anchor, code, heading, page, paragraph, sentence, table
from sandlot.wire.error_codes import FILE_STATUS, STATUS, problem_of

WHAT_TO_DO: Final = "What to do: "

_HEAD = f"""Every error that Sandlot defines, for the SDK and the HTTP API. Wrong use of the SDK can also
raise Python's `TypeError` or `RuntimeError`, and `Exec.wait` raises `TimeoutError`. {GENERATED}

In Python they are in `sandlot.errors`, except `CommandFailed`, which is in `sandlot`. All are subclasses of
`SandlotError`. Over HTTP an error is `application/problem+json` (RFC 9457), for example:"""

_EXAMPLE = Unavailable(
    "This worker has reached its limit of 100 sessions. Delete some, or raise SANDLOT_MAX_SESSIONS.",
    retry_after_s=5.0,
    details={"reason": "capacity"},
)

_FIELDS: Final = (
    ("code", "Which error it is. Codes are stable; messages are not."),
    ("message", "What happened and what to do, for people. Over HTTP it is called `detail`."),
    ("retryable", "Whether the same request may succeed later, unchanged."),
    ("may_have_executed", "Whether the request may have had an effect, such as a command that has run."),
    ("retry_after_s", "Seconds to wait before a retry, if known. Over HTTP also as `Retry-After`."),
    ("details", "What a program can act on."),
    ("request_id", "Finds the request in the server's log. In Python it is in `details`."),
)

_AFTER_FIELDS = """
Below, `retryable` and `may_have_executed` are the defaults of each kind. The server may know better, so read
them from the error itself.

If `may_have_executed` is true, do not run a command again; ask for its result by its exec id:
`session.exec(exec_id).wait()`, or `GET /v1/sessions/{session_id}/execs/{exec_id}?wait_s=30`. You know the id
if you pass `exec_id=` yourself; otherwise look in `details["exec_id"]` or `session.execs()`.

A request that breaks the rules of HTTP, such as a wrong method (405) or a body that arrives too slowly (408),
gets `invalid_request` with that HTTP status. If a newer server sends a code that the client does not know,
the client raises a plain `SandlotError` with that code."""


def errors_page() -> str:
    kinds = [*_tree(SandlotError), CommandFailed]
    links = {kind.__name__: f"#{anchor(kind.__name__)}" for kind in kinds}
    return page(
        heading(1, "Errors"),
        *(paragraph(text) for text in _HEAD.split("\n\n")),
        code(json.dumps(asdict(problem_of(_EXAMPLE, "req_5f0c…")), indent=2, ensure_ascii=False), "json"),
        table(("field", "meaning"), ((f"`{name}`", meaning) for name, meaning in _FIELDS)),
        *(paragraph(text) for text in _AFTER_FIELDS.split("\n\n")),
        heading(2, "All errors"),
        paragraph(
            "An indented error is a subclass of the nearest unindented one above it; `except` with that "
            "class catches both."
        ),
        table(
            ("class", "code", "HTTP", "retryable", "may have executed", "meaning"),
            (_row(kind, links) for kind in kinds),
        ),
        *(_section(kind, links) for kind in kinds),
    )


def _tree(kind: type[SandlotError]) -> Iterator[type[SandlotError]]:
    """The errors of the table, each followed by its subclasses."""
    yield kind
    for child in STATUS:
        if child.__base__ is kind:
            yield from _tree(child)


def _row(kind: type[SandlotError], links: dict[str, str]) -> tuple[str, ...]:
    depth = len([each for each in kind.__mro__ if issubclass(each, SandlotError)]) - 1
    indent = "&emsp;" * max(0, depth - 1)
    return (
        f"{indent}[`{kind.__name__}`]({links[kind.__name__]})",
        f"`{kind.code}`",
        _status(kind),
        _yes(kind.retryable),
        _yes(kind.may_have_executed),
        inline(first_sentence(own_docstring(kind))),
    )


def _section(kind: type[SandlotError], links: dict[str, str]) -> str:
    told = explained(own_docstring(kind), FILE_REASONS if kind is FileProblem else ())
    meaning, _, advice = told.text.partition(WHAT_TO_DO)
    facts = [
        f"Code `{kind.code}`",
        f"HTTP {_status(kind)}" if kind in STATUS else "never over HTTP",
        "retryable" if kind.retryable else "not retryable",
        "may have executed" if kind.may_have_executed else "",
    ]
    others = {name: target for name, target in links.items() if name != kind.__name__}
    reasons = (
        (f"`{reason}`", str(FILE_STATUS.get(reason, STATUS[FileProblem])), sentence(inline(meaning)))
        for reason, meaning in told.meanings.items()
    )
    return page(
        heading(2, kind.__name__),
        paragraph(", ".join(filter(None, facts)) + "."),
        as_markdown(meaning, others),
        table(("reason", "HTTP", "meaning"), reasons),
        as_markdown(f"**What to do:** {advice}", others),
    )


def _status(kind: type[SandlotError]) -> str:
    if kind is FileProblem:
        return ", ".join(str(status) for status in sorted({STATUS[kind], *FILE_STATUS.values()}))
    return str(STATUS[kind]) if kind in STATUS else "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
