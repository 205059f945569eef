"""Pages of the console over many sessions and a long history: the server's answers, and paint."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from urllib.parse import quote

import httpx

from bench.console.browser import logged_in
from bench.console.filled import BUSY_THREAD, EVENTS, SESSIONS
from bench.rig import progress
from bench.server import Served, serving

# What the overview looks back on.
ACTIVITY_S: Final = 30 * 60
PAINTED_WITHIN_MS: Final = 60_000
ACTIVITY_KINDS: Final = (
    *("session.created", "exec.started", "exec.ended"),
    *("session.lost", "request.refused", "history.dropped"),
)
# The page says when what it waits for was in a frame.
WATCH: Final = """
window.painted = {};
window.watchFor = (selector, least) => {
    const look = () => {
        if (document.querySelectorAll(selector).length >= least) {
            watcher.disconnect();
            requestAnimationFrame(() => setTimeout(() => { window.painted[selector] ??= performance.now(); }));
        }
    };
    const watcher = new MutationObserver(look);
    watcher.observe(document, { childList: true, subtree: true });
    look();
};
for (const [selector, least] of JSON.parse(sessionStorage.getItem('bench.watch') ?? '[]')) {
    window.watchFor(selector, least);
}
"""


def filled(sessions: int, events: int, api_key: str) -> AbstractAsyncContextManager[Served]:
    settings: dict[str, object] = {"api_key": api_key, "pool_size": 1}
    return serving(
        module="bench.console.filled",
        environ={SESSIONS: str(sessions), EVENTS: str(events)},
        ready_within_s=300,
        **settings,
    )


async def measure(served: Served, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The milliseconds of each question at the server, and of each page until it is painted."""
    headers = {"Authorization": f"Bearer {served.api_key}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=60) as http:
        busy = (await http.get("/v1/sessions", params={"thread": BUSY_THREAD})).json()["sessions"][0]["id"]
        server = {name: await ask(http, rounds) for name, ask in _questions(busy).items()}
    for name, samples in server.items():
        progress(f"{name}: longest {max(samples):.0f} ms")
    async with logged_in(served, WATCH) as page:
        paint = {
            name: [await _painted(page, served.url + path, wanted) for _ in range(max(3, rounds // 3))]
            for name, (path, wanted) in _places(busy).items()
        }
    for name, samples in paint.items():
        progress(f"{name}: painted after {max(samples):.0f} ms at most")
    return server, paint


Ask = Callable[[httpx.AsyncClient, int], Any]


def _questions(busy: str) -> dict[str, Ask]:
    """What the pages ask for, as they ask it. Of a stream, the first event counts."""
    return {
        "overview: health": _answered("/v1/health"),
        "overview: metrics": _answered("/metrics"),
        "overview: activity, first event": _streamed(
            "/v1/events", lambda: {"since": int(time.time()) - ACTIVITY_S, "kind": list(ACTIVITY_KINDS)}
        ),
        "sessions: a page of 500": _answered("/v1/sessions", limit=500),
        "threads: a page of 1,000": _answered("/v1/sessions", limit=1000),
        "history, first event": _streamed(f"/v1/sessions/{busy}/history", dict),
        "thread, first event": _streamed("/v1/events", lambda: {"thread": BUSY_THREAD}),
        "session": _answered(f"/v1/sessions/{busy}"),
    }


def _answered(path: str, **query: int) -> Ask:
    async def ask(http: httpx.AsyncClient, rounds: int) -> list[float]:
        samples = []
        for _ in range(rounds):
            began = time.perf_counter()
            (await http.get(path, params=query)).raise_for_status()
            samples.append((time.perf_counter() - began) * 1000)
        return samples

    return ask


def _streamed(path: str, query: Callable[[], dict[str, Any]]) -> Ask:
    async def ask(http: httpx.AsyncClient, rounds: int) -> list[float]:
        samples = []
        for _ in range(rounds):
            began = time.perf_counter()
            accept = {"Accept": "text/event-stream"}
            async with http.stream("GET", path, params=query(), headers=accept) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        break
            samples.append((time.perf_counter() - began) * 1000)
        return samples

    return ask


def _places(busy: str) -> dict[str, tuple[str, tuple[str, int]]]:
    """Where each page is, and what must be on it."""
    return {
        "overview": ("/console/", (".figures .figure", 4)),
        "sessions": ("/console/sessions", ("tbody tr", 50)),
        "threads": ("/console/threads", (".rows > li", 50)),
        "history": (f"/console/sessions/{busy}/history", (".timeline > li", 50)),
        "story": (f"/console/threads/{quote(BUSY_THREAD)}", (".story .step", 20)),
        "session": (f"/console/sessions/{busy}", ("main h1.mono", 1)),
    }


async def _painted(page: Any, url: str, wanted: tuple[str, int]) -> float:
    """Milliseconds from the navigation until what is wanted was painted."""
    await page.evaluate("wanted => sessionStorage.setItem('bench.watch', JSON.stringify([wanted]))", wanted)
    await page.goto(url)
    handle = await page.wait_for_function(
        "selector => window.painted[selector]", arg=wanted[0], timeout=PAINTED_WITHIN_MS
    )
    return float(await handle.json_value())
