"""The picture of a create and of an execute, step by step, as ARCHITECTURE.md tells them."""

from __future__ import annotations

from canvas import MARGIN, Canvas, text_width

LANES = [84, 252, 420, 588, 756]
CLIENT, API, WORKER, FOURTH, FIFTH = range(5)


class Lanes:
    """A sequence over five lanes. Its calls and notes are numbered in the order in which they are drawn."""

    def __init__(
        self, canvas: Canvas, y: float, bottom: float, colour: str, heads: list[tuple[str, str]]
    ) -> None:
        self._canvas = canvas
        self._colour = colour
        self._number = 0
        for x, (name, place) in zip(LANES, heads, strict=True):
            canvas.line((x, y + 48), (x, bottom), colour="edge")
            canvas.box(x - 68, y, 136, 48, "card")
            canvas.text(x, y + 20, name, "strong", anchor="middle")
            canvas.text(x, y + 38, f"`{place}`", colour="grey", anchor="middle")

    def call(self, y: float, start: int, end: int, text: str, *, aside: bool = False) -> None:
        """``aside``: it does not always happen, or nobody waits for it; dashed, and without a number."""
        way = 1 if end > start else -1
        here, there = LANES[start], LANES[end] - way * 2
        colour, look = ("grey", "dashed") if aside else (self._colour, "plain")
        self._canvas.line((here, y), (there, y), colour=colour, look=look, arrow=True)
        middle = (here + there) / 2 + way * 3
        self._canvas.text(middle, y - 8, text, anchor="middle", backed=abs(end - start) > 1)
        if not aside:
            self._count(here, y)

    def note(self, y: float, lane: int, texts: list[str], *, aside: bool = False) -> None:
        width = max(text_width(text, "small") for text in texts) + 24
        left, height = LANES[lane] - width / 2, 14 + 17 * len(texts)
        self._canvas.box(left, y, width, height, f"tint {'grey' if aside else self._colour}")
        self._canvas.lines(LANES[lane], y + 20, texts, anchor="middle")
        if not aside:
            self._count(left, y)

    def _count(self, x: float, y: float) -> None:
        self._number += 1
        self._canvas.dot(x, y, self._number, self._colour)


def lives() -> Canvas:
    c = Canvas(
        1322,
        "The life of a create and of an execute",
        "A create: the API calls the worker, which answers with a known session or claims a warm sandbox, "
        "records session and sandbox together, binds the sandbox and answers 201. An execute: the API calls "
        "the worker, whose link sends one OPEN frame to the agent. The agent's frames become events, and the "
        "events become one result.",
    )
    _create(c, 36)
    _make(c, 636)
    _execute(c, 758)
    return c


def _create(c: Canvas, y: float) -> None:
    c.text(MARGIN, y, "Life of a create", "headline")
    heads = [("Client", "client/"), ("API", "api/"), ("Worker", "worker/")]
    heads += [("Pool and store", "worker/pool/"), ("Provider, agent", "providers/")]
    lanes = Lanes(c, y + 20, y + 568, "blue", heads)
    lanes.call(y + 106, CLIENT, API, "`POST /v1/sessions`")
    lanes.call(y + 106, API, WORKER, "`create_session`")
    lanes.note(y + 128, WORKER, ["Known thread or key:", "answer with its session,", "else `Opening.open`"])
    lanes.call(y + 228, WORKER, FOURTH, "`WarmPool.claim`")
    lanes.note(y + 244, FOURTH, ["None warm: wait in a", "fair queue; 503 at", "the deadline"], aside=True)
    lanes.call(y + 334, FOURTH, FIFTH, "`provider.create`", aside=True)
    lanes.call(y + 374, WORKER, FOURTH, "record both")
    lanes.call(y + 414, WORKER, FIFTH, "`bind`: variables in, proof that it is alive")
    lanes.call(y + 450, FIFTH, WORKER, "dead: claim the next one", aside=True)
    lanes.call(y + 484, WORKER, CLIENT, "201")
    lanes.call(y + 520, WORKER, FIFTH, "limits, beside the answer; first call waits", aside=True)
    lanes.call(y + 554, FOURTH, FIFTH, "refill", aside=True)
    _remark(
        c,
        32,
        y + 356,
        272,
        "Recorded before bound",
        ["A sandbox with someone's variables", "never looks like a warm one."],
    )


def _make(c: Canvas, y: float) -> None:
    c.text(MARGIN, y, "`provider.create` makes a sandbox", "strong")
    c.text(824, y, "Any failure on the way removes everything again.", colour="grey", anchor="end")
    steps = [("a folder with", "the secret"), ("the socket", "listens"), ("volume, container", "(`spec.py`)")]
    steps += [("the container", "starts"), ("the agent", "dials"), ("it gets the secret", "and proves it")]
    for index, step in enumerate(steps):
        x = MARGIN + index * 137
        c.box(x, y + 16, 123, 48, "card")
        c.lines(x + 61.5, y + 36, list(step), anchor="middle")
        if index:
            c.line((x - 14, y + 40), (x, y + 40), arrow=True)


def _execute(c: Canvas, y: float) -> None:
    c.text(MARGIN, y, "Life of an execute", "headline")
    heads = [("Client", "client/"), ("API", "api/"), ("Worker", "worker/")]
    heads += [("Link", "providers/link/"), ("Agent", "agent/")]
    lanes = Lanes(c, y + 20, y + 458, "violet", heads)
    lanes.note(y + 88, CLIENT, ["`Session.run`", "`HttpService`"])
    lanes.call(y + 168, CLIENT, API, "`POST …/exec`")
    lanes.call(y + 168, API, WORKER, "`execute`")
    lanes.note(y + 190, WORKER, ["`use`: state,", "expiry, activity"])
    lanes.call(y + 266, WORKER, FOURTH, "`Sandbox.run`")
    lanes.call(y + 266, FOURTH, FIFTH, "one OPEN frame")
    lanes.note(y + 288, FIFTH, ["same id: attach;", "else fork, pumps"])
    lanes.call(y + 364, FIFTH, FOURTH, "DATA, MESSAGE")
    lanes.call(y + 364, FOURTH, WORKER, "events")
    lanes.note(y + 386, WORKER, ["`ResultFold`"])
    lanes.call(y + 446, WORKER, CLIENT, "`ExecResult`")
    texts = [
        ("The connection breaks", ["The SDK asks again", "by the exec id."]),
        ("Started, then unknown", ["`SandboxLost`: the command", "is never run again."]),
        ("The link breaks", ["`run` waits for the redial and", "attaches at the next offset."]),
    ]
    for index, (title, words) in enumerate(texts):
        _remark(c, MARGIN + index * 274, y + 474, 260, title, words)


def _remark(c: Canvas, x: float, y: float, width: float, title: str, texts: list[str]) -> None:
    c.box(x, y, width, 74, "tint sand")
    c.text(x + 16, y + 24, title, "strong", colour="sand")
    c.lines(x + 16, y + 44, texts)
