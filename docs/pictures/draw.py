"""Draws the pictures of README.md, ARCHITECTURE.md and the explanation: ``python docs/pictures/draw.py``.

An argument names another folder to write to. A test fails when the committed files are out of date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from canvas import CENTRE, INNER, MARGIN, WIDTH, Canvas
from lives import lives
from parts import parts, walls

HERE = Path(__file__).parent
PYPROJECT = HERE.parents[1] / "pyproject.toml"


def overview() -> Canvas:
    c = Canvas(
        596,
        "Sandlot: one conversation, one computer",
        "An agent, built with LangGraph, MCP or Python, has three conversations, each with a thread id. They "
        "reach a worker beside Docker through the Sandlot SDK or HTTP. It gives each thread a sandbox of its "
        "own: a container without network whose first process is the Sandlot agent. A pool of warm sandboxes "
        "is ready for new threads. For more machines, coordinators and Redis stand before several workers.",
    )
    top, bottom, row_height = 56, 462, 66
    rows = [(116 + 80 * index, 149 + 80 * index) for index in range(4)]  # the top and the middle of each
    c.text(
        CENTRE,
        36,
        "One conversation, one computer: isolated, stateful, self-hosted",
        "headline",
        anchor="middle",
    )

    threads = [
        ("a", "blue", "“Plot these sales”", "python3 plot.py"),
        ("b", "green", "“Fix the failing test”", "pytest -q"),
        ("c", "violet", "“Clean up this CSV”", "sort -u in.csv"),
    ]
    machine = 344
    c.box(MARGIN, top, 176, 302, "card")
    c.text(32, top + 26, "Your agent", "title")
    c.text(32, top + 45, "LangGraph, MCP, Python", colour="grey")
    c.box(machine, top, WIDTH - MARGIN - machine, bottom - top, "card")
    c.text(360, top + 26, "One machine with Docker", "title")
    c.text(360, top + 45, "`sandlot serve` is one process beside the engine", colour="grey")

    for (y, middle), (name, colour, said, command) in zip(rows, threads, strict=False):
        c.line((176, middle), (512, middle), colour=colour, look="thick", arrow=True)
        c.box(32, y + 6, 144, row_height - 12, f"tint {colour}", radius=14)
        c.text(44, y + 28, f"thread {name}", "strong", colour=colour)
        c.text(44, y + 46, said)
        c.box(512, y, 296, row_height, f"tint {colour}")
        c.text(526, y + 24, f"Sandbox {name}", "strong", colour=colour)
        c.text(794, y + 24, "container · no network", colour="grey", anchor="end")
        c.box(526, y + 34, 148, 22, "paper", radius=11)
        c.text(600, y + 49, "Sandlot agent, PID 1", anchor="middle")
        c.text(682, y + 49, f"`{command}`")

    y, middle = rows[3]
    c.line((480, middle), (512, middle), colour="sand", look="dashed", arrow=True)
    c.box(512, y, 296, row_height, "paper dashed")
    c.text(526, y + 28, "Warm pool", "strong", colour="sand")
    c.text(526, y + 47, "a session in milliseconds")
    for x in (706, 738, 770):
        c.box(x, y + 13, 24, 40, "tint sand dashed", radius=5)
    c.text(512, 446, "Read-only system, ordinary user, runc or gVisor", colour="grey")

    c.box(220, top, 96, 302, "tint sand")
    c.text(268, top + 26, "Sandlot", "title", colour="sand", anchor="middle")
    c.text(268, top + 45, "SDK or HTTP", anchor="middle")
    c.lines(268, 190, ["`Client`", "`AsyncClient`"], anchor="middle", pitch=20)
    c.lines(268, 270, ["HTTP API", "MCP server"], anchor="middle", pitch=20)
    c.box(360, rows[0][0], 120, 330, "tint sand")
    c.text(420, 144, "Worker", "title", colour="sand", anchor="middle")
    c.lines(420, 192, ["a sandbox for", "each thread"], anchor="middle")
    c.lines(420, 272, ["commands,", "shells, files"], anchor="middle")
    c.lines(420, 352, ["pool, recovery,", "loss reports"], anchor="middle")

    c.box(MARGIN, 374, 300, bottom - 374, "card dashed")
    c.text(32, 400, "Or no server at all", "title")
    c.text(32, 421, "`Client.local()` runs the worker")
    c.text(32, 440, "in your own program.")
    _fleet(c, bottom + 16)
    return c


def _fleet(c: Canvas, top: float) -> None:
    c.box(MARGIN, top, INNER, 102, "paper dashed")
    c.text(32, top + 32, "More machines", "title", colour="grey")
    c.lines(32, top + 54, ["The same API, with Redis.", "Commands go straight", "to the worker."])
    y, middle, foot = top + 18, top + 42, top + 84
    c.box(240, y, 128, 48, "card")
    c.text(304, y + 20, "Coordinators", "strong", colour="grey", anchor="middle")
    c.text(304, y + 38, "any number", anchor="middle")
    c.box(412, y, 128, 48, "card")
    c.text(476, y + 20, "Redis", "strong", colour="grey", anchor="middle")
    c.text(476, y + 38, "shared record", anchor="middle")
    c.line((368, middle), (412, middle), arrow=True)
    c.line((584, middle), (540, middle), arrow=True)
    c.line((304, y + 48), (304, foot), (766, foot))
    for x in (584, 662, 740):
        c.box(x, y, 68, 48, "card")
        c.text(x + 34, y + 20, "Worker", "strong", colour="grey", anchor="middle")
        c.text(x + 34, y + 38, "Docker", anchor="middle")
        c.line((x + 26, foot), (x + 26, y + 48), arrow=True)
    c.text(438, foot + 4, "creates", colour="grey", anchor="middle", backed=True)


ROOMS = {
    "reference": ["the generated pages of docs/reference"],
    "cli": ["the `sandlot` command: serve, worker, coordinator, run, shell, mcp, doctor, …"],
    "wiring": ["builds a worker, a coordinator, a server or a local service from settings"],
    "testing": ["the fake for your own tests, and the conformance suites"],
    "worker": ["sessions, pool, recovery, store", "(SQLite), on real sandboxes"],
    "fleet": ["several machines: directory in", "Redis, coordinator, tokens"],
    "integrations": ["LangChain, deepagents, MCP, …:", "adapters, on the SDK alone"],
    "providers": ["what makes sandboxes: Docker,", "and the link to the agent"],
    "api": ["`create_app(host)`: routes,", "streams, problems"],
    "client": ["the SDK: `AsyncClient`, `Client`,", "the way to a server"],
    "wire": ["HTTP bodies, error codes,", "agent frames"],
    "config": ["settings; the registry's YAML"],
    "bash": ["reads commands with a parser,", "for policies"],
    "domain": ["values, rules, errors and the contract; standard library only"],
}
# Room, class, and how it keeps the contract.
SERVICES = [
    ("worker", "WorkerService", "on real sandboxes"),
    ("client", "HttpService", "by calling a server"),
    ("testing", "FakeService", "in memory, for your tests"),
    ("fleet", "CoordinatorService", "by finding the right worker"),
]


def floors() -> Canvas:
    """The floors are read from the import linter's contract, which enforces them."""
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    levels = [re.findall(r"\w+", layer) for layer in layers]
    c = Canvas(
        880,
        "The floors of src/sandlot, and its one contract",
        "From top to bottom: "
        + "; ".join(", ".join(rooms) for rooms in levels)
        + ". Imports point down only. "
        "SandboxService, in domain, is called by the API and the SDK and implemented by "
        + ", ".join(f"{name} ({room})" for room, name, _ in SERVICES)
        + ".",
    )
    c.text(MARGIN, 36, "Floors of `src/sandlot`", "headline")
    c.text(WIDTH - MARGIN, 36, "Imports point down only, never sideways.", colour="grey", anchor="end")
    badges = {room: name for room, name, _ in SERVICES} | {"domain": "SandboxService"}
    y, gap = 56.0, 22
    for level, rooms in enumerate(levels):
        height = {1: 44, 2: 60, 3: 76}[len(rooms)]
        width = (INNER - 16 * (len(rooms) - 1)) / len(rooms)
        if level:
            for eighths in (1, 3, 5, 7):
                c.line(
                    (MARGIN + INNER * eighths / 8, y - gap + 2),
                    (MARGIN + INNER * eighths / 8, y - 2),
                    arrow=True,
                )
        for index, room in enumerate(rooms):
            x = MARGIN + index * (width + 16)
            c.box(x, y, width, height, "tint sand" if room == "domain" else "card")
            base = y + (27 if len(rooms) == 1 else 25)
            c.text(x + 16, base, f"`{room}`", "title")
            c.lines(*((x + 110, base) if len(rooms) == 1 else (x + 16, base + 21)), ROOMS[room])
            if room in badges:
                c.text(x + width - 16, base, f"`{badges[room]}`", colour="sand", anchor="end")
        y += height + gap
    _contract(c, y + 18)
    return c


def _contract(c: Canvas, y: float) -> None:
    c.text(MARGIN, y, "One contract, four implementations", "headline")
    top, middle = y + 20, y + 122
    for index, (name, words) in enumerate([("create_app(host)", "the HTTP API"), ("AsyncClient", "the SDK")]):
        x, height = MARGIN, 48
        at = middle - height - 8 + index * (height + 16)
        c.box(x, at, 184, height, "card")
        c.text(x + 16, at + 20, f"`{name}`")
        c.text(x + 16, at + 38, words, colour="grey")
        c.line((200, at + 24), (292, at + 24), arrow=True)
        c.text(242, at + 17, "calls", colour="grey", anchor="middle")
    c.box(292, middle - 74, 208, 148, "tint sand")
    c.text(396, middle - 44, "`SandboxService`", "title", anchor="middle", colour="sand")
    c.lines(
        396,
        middle - 18,
        ["`domain/service.py`", "sessions, execs,", "shells, files"],
        anchor="middle",
        pitch=19,
    )
    c.text(396, middle + 54, "one suite proves all four", anchor="middle", colour="grey")
    c.line((576, middle), (500, middle), colour="sand", arrow=True)
    c.text(540, middle - 8, "implement", colour="grey", anchor="middle")
    for index, (_, name, how) in enumerate(SERVICES):
        at = top + index * 54
        c.box(600, at, 224, 46, "card")
        c.text(616, at + 19, f"`{name}`", colour="sand")
        c.text(616, at + 37, how, colour="grey")
        c.line((600, at + 23), (576, at + 23), (576, middle), colour="sand")


PICTURES = {
    "overview.svg": overview,
    "floors.svg": floors,
    "lives.svg": lives,
    "parts.svg": parts,
    "walls.svg": walls,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
