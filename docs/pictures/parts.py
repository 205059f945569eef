"""The pictures of the explanation: the parts on one machine, and the walls around a command."""

from __future__ import annotations

from canvas import MARGIN, WIDTH, Canvas


def parts() -> Canvas:
    c = Canvas(
        548,
        "The parts of Sandlot on one machine",
        "Clients reach one worker process over HTTP. The worker asks the Docker engine to create and remove "
        "containers. In each container an agent is PID 1. It connects to the worker over a Unix socket, and "
        "commands, files and network connections travel there. The worker keeps its records in SQLite files "
        "and the workspaces in a store. It alone connects to the internet.",
    )
    c.text(MARGIN, 36, "The parts on one machine", "headline")
    c.box(232, 56, WIDTH - MARGIN - 232, 476, "card dashed")
    c.box(MARGIN, 56, 168, 318, "card")
    c.text(32, 82, "Clients", "title")
    for index, (name, how) in enumerate(
        [
            ("Python SDK", "HTTP"),
            ("Your own client", "HTTP"),
            ("MCP clients", "HTTP, stdio"),
            ("Console", "HTTP"),
        ]
    ):
        y = 98 + index * 66
        c.box(32, y, 136, 52, "paper")
        c.text(100, y + 22, name, "strong", anchor="middle")
        c.text(100, y + 40, how, colour="grey", anchor="middle")
        c.line((168, y + 26), (256, y + 26), arrow=True)

    c.box(256, 76, 200, 298, "tint sand")
    c.text(356, 102, "Worker", "title", colour="sand", anchor="middle")
    c.text(356, 120, "`sandlot serve`", anchor="middle")
    rows = [
        ("Front door", "keys, limits, budget"),
        ("Sessions", "threads, pool, recovery"),
        ("Policies", "commands, network"),
        ("Proxy", "names, secrets, cache"),
    ]
    for index, (name, what) in enumerate(rows):
        y = 134 + index * 58
        c.box(272, y, 168, 48, "paper")
        c.text(356, y + 20, name, "strong", anchor="middle")
        c.text(356, y + 38, what, colour="grey", anchor="middle")

    c.box(580, 76, 224, 62, "card")
    c.text(692, 102, "Docker engine", "title", anchor="middle")
    c.text(692, 122, "runc or runsc (gVisor)", anchor="middle", colour="grey")
    c.line((456, 107), (580, 107), arrow=True)
    c.text(518, 96, "creates, removes", colour="grey", anchor="middle")
    for index, (name, colour) in enumerate([("Sandbox a", "blue"), ("Sandbox b", "green"), ("Warm", "sand")]):
        y = 168 + index * 72
        c.box(580, y, 224, 58, f"tint {colour}{' dashed' if colour == 'sand' else ''}")
        c.text(596, y + 24, name, "strong", colour=colour)
        c.text(596, y + 44, "agent, PID 1")
        c.text(792, y + 44, "commands", anchor="end", colour="grey")
        c.line((580, y + 29), (456, y + 29), colour=colour, look="thick", arrow=True)
    c.lines(518, 190, ["a Unix socket"], anchor="middle")
    c.text(518, 262, "execs, files, net", anchor="middle", colour="grey")

    c.line((692, 138), (692, 168), arrow=True)
    c.box(256, 410, 200, 106, "card")
    c.text(272, 436, "Disk of the worker", "strong")
    c.lines(272, 458, ["sessions, snapshots,", "history in SQLite;", "secrets"])
    c.line((356, 374), (356, 410), arrow=True)
    c.box(580, 410, 224, 106, "card")
    c.text(596, 436, "Workspaces", "strong")
    c.lines(596, 458, ["btrfs or Docker volumes;", "they outlive the sandboxes", "at `/workspace`"])
    c.line((692, 410), (692, 370), arrow=True)
    c.box(MARGIN, 410, 168, 106, "paper dashed")
    c.text(32, 436, "Internet", "strong")
    c.lines(32, 458, ["what a policy allows;", "the worker connects,", "no sandbox does"])
    c.line((310, 374), (310, 392), (100, 392), (100, 410), colour="violet", arrow=True)
    return c


def walls() -> Canvas:
    c = Canvas(
        520,
        "The walls around a command",
        "A command runs as a user of its own, without capabilities. Around it is a filter of calls, or "
        "gVisor's kernel. Around that is a container with a read-only system, limits and no network "
        "interface. The agent beside it has another user and speaks to the worker over a Unix socket. The "
        "worker reads every frame within bounds, and its proxy connects only to names that a policy allows.",
    )
    c.text(MARGIN, 36, "The walls around a command", "headline")
    c.box(MARGIN, 56, 484, 448, "card")
    c.text(32, 80, "Container", "title")
    c.lines(32, 100, ["read-only system, loopback only, limits on memory, CPU, processes"])
    c.box(32, 116, 452, 372, "tint blue")
    c.text(48, 140, "Kernel wall", "title", colour="blue")
    c.lines(
        48,
        160,
        [
            "`runc`: system calls on a list of our own, the rest refused",
            "`runsc`: gVisor's kernel, not the host's",
        ],
    )
    c.box(48, 196, 420, 186, "tint green")
    c.text(64, 220, "User", "title", colour="green")
    c.lines(
        64, 240, ["a uid that no other sandbox has; no capabilities,", "no new privileges, no setuid files"]
    )
    c.box(64, 272, 388, 94, "paper")
    c.text(80, 298, "Command", "title")
    c.text(80, 320, "`python3 plot.py`")
    c.text(80, 344, "writes to `/workspace`, `/tmp`, `/dev/shm`", colour="grey")
    c.box(48, 398, 420, 74, "tint sand")
    c.text(64, 424, "Agent, PID 1", "title", colour="sand")
    c.lines(64, 444, ["another user; commands cannot signal, read", "or trace it, nor reach its socket"])

    c.box(584, 56, 240, 448, "card")
    c.text(600, 80, "Worker", "title")
    c.text(600, 100, "trusts nothing that comes out", colour="grey")
    rooms = [
        (124, "Policy", ["reads the command first;", "a guard rail, not a wall"], "paper dashed"),
        (222, "Proxy", ["decides by name, resolves,", "checks the address,", "then connects"], "tint violet"),
        (
            336,
            "Link",
            ["parses frames strictly;", "bounds memory and time;", "ends a link that breaks", "a rule"],
            "tint sand",
        ),
    ]
    for y, name, words, look in rooms:
        height = 34 + 17 * len(words) + 10
        c.box(600, y, 208, height, look)
        c.text(616, y + 24, name, "strong")
        c.lines(616, y + 44, words)
    c.line((468, 435), (600, 435), colour="sand", look="thick", arrow=True)
    c.lines(542, 408, ["a Unix", "socket"], anchor="middle", pitch=16)
    return c
