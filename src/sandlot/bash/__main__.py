"""The process in which commands are read: requests on stdin, decisions on stdout, each with its length.

It ends when its stdin does.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import BinaryIO

from sandlot.bash.parsing import load_parser
from sandlot.bash.reading import read_arguments, read_text
from sandlot.domain.policy.deciding import Decision, decide
from sandlot.domain.policy.policy import CommandPolicy


def read_frame(stream: BinaryIO) -> bytes | None:
    length = stream.read(4)
    return stream.read(int.from_bytes(length)) if len(length) == 4 else None


def write_frame(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(4) + content)
    stream.flush()


def decide_here(policy: CommandPolicy, command: str | None, argv: list[str] | None) -> Decision:
    return decide(policy, read_text(command) if command is not None else read_arguments(argv or ()))


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    first = read_frame(requests)
    assert first is not None
    policy: CommandPolicy = pickle.loads(first)  # noqa: S301 (from the process that started this one)
    load_parser()
    write_frame(answers, b"{}")
    while (request := read_frame(requests)) is not None:
        asked = json.loads(request)
        write_frame(answers, decide_here(policy, asked["command"], asked["argv"]).to_json())


if __name__ == "__main__":
    main()
