"""``code``: runs code in a session's context, which keeps its variables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from sandlot.cli.chosen import ThreadOption, find_session, parse_variables
from sandlot.cli.connection import with_client
from sandlot.cli.run import Timeout, Variables
from sandlot.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.code.async_code import CodeOptions
    from sandlot.client.code.code_result import CodeResult
    from sandlot.domain.code.result import Value

_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}


def register(app: typer.Typer) -> None:
    app.command()(code)


def code(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] CODE",
            help="Session id (omit it with --thread), then the code; - reads it from stdin.",
            show_default=False,
        ),
    ],
    thread: ThreadOption = None,
    context: Annotated[
        str,
        typer.Option(
            "--context",
            metavar="CONTEXT",
            help="The context to run it in. A language's name, such as javascript, is its default context.",
        ),
    ] = "python",
    env: Variables = None,
    timeout: Timeout = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="DIR", help="Save pictures to files in this folder.", show_default=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the code gave as JSON when it ends.")
    ] = False,
) -> None:
    """Run code in a session with kernels.

    Variables stay for the next run. Prints what the code writes, and then its value. Exits with 1 if the
    code fails.
    """
    session_id = None if thread is not None else words[0]
    texts = words if session_id is None else words[1:]
    if len(texts) != 1:
        raise InvalidRequest(
            "Give one session and one text of code: sandlot code SESSION 'print(1)'. Quote the code, or "
            "use - and write it to stdin."
        )
    options: CodeOptions = {"timeout_s": timeout, "env": parse_variables(env)}

    async def work(client: AsyncClient) -> int:
        session = await find_session(client, session_id, thread)
        text = sys.stdin.read() if texts[0] == "-" else texts[0]
        if as_json:
            result = await session.code.run(text, context=context, **options)
        else:
            result = await session.code.run(
                text, context=context, on_stdout=_writer(sys.stdout), on_stderr=_writer(sys.stderr), **options
            )
        saved = [] if save is None else _save(result, save)
        if as_json:
            _print_json(result, saved)
        else:
            _print_values(result, saved)
        return 0 if result.ok else result.raw.exit_code or 1

    raise typer.Exit(with_client(ctx, work))


def _writer(stream: TextIO) -> Callable[[str], None]:
    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


def _pictures(value: Value) -> dict[str, bytes]:
    drawn = {} if value.svg is None else {"image/svg+xml": value.svg.encode("utf-8", "replace")}
    return {kind: content for kind, content in (value.pictures | drawn).items() if kind in _ENDINGS}


def _save(result: CodeResult, folder: Path) -> list[Path]:
    """Save the pictures, under names of ours: what a sandbox says could lead anywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    saved: list[Path] = []
    for value in result.results:
        for kind, content in _pictures(value).items():
            saved.append(folder / f"cell-{result.execution_count or 0}-{len(saved) + 1}.{_ENDINGS[kind]}")
            saved[-1].write_bytes(content)
    return saved


def _print_values(result: CodeResult, saved: list[Path]) -> None:
    from sandlot.cli.terminal.display import note

    for value in result.results:
        if value.text is not None:
            print(value.text)
    if result.error is not None:
        print(result.error.traceback or result.error, file=sys.stderr)
    elif not result.ok:
        note(
            f"The code ended: {result.verdict.value}. {result.raw.stderr.decode('utf-8', 'replace')}".strip()
        )
    for path in saved:
        note(f"Saved {path}")
    if not saved and (shown := sum(len(_pictures(value)) for value in result.results)):
        note(f"The code displayed pictures ({shown}). To save them, use --save DIR.")


def _print_json(result: CodeResult, saved: list[Path]) -> None:
    from sandlot.cli.terminal.display import print_json

    print_json(
        {
            "ok": result.ok,
            "text": result.text,
            "results": [
                {"data": value.data, "main": value.main, "metadata": value.metadata}
                for value in result.results
            ],
            "stdout": result.stdout,
            "stderr": result.stderr,
            "error": result.error,
            "execution_count": result.execution_count,
            "verdict": result.verdict,
            "truncated": result.truncated,
            "duration_ms": result.duration_ms,
            "exec_id": result.exec_id,
            "saved": [str(path) for path in saved],
        }
    )
