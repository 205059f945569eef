"""The process in which commands are read: requests on stdin, decisions on stdout, each with its length.

It ends when its stdin does.
"""

from __future__ import annotations

import gc
import json
import pickle
import sys
from typing import BinaryIO

from sandlot.bash.parsing import load_parser
from sandlot.bash.reading import read_request
from sandlot.domain.policy.deciding import decide
from sandlot.domain.policy.policy import CommandPolicy


def read_frame(stream: BinaryIO) -> bytes | None:
    length = stream.read(4)
    return stream.read(int.from_bytes(length)) if len(length) == 4 else None


def write_frame(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(4) + content)
    stream.flush()


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    first = read_frame(requests)
    assert first is not None
    policy: CommandPolicy = pickle.loads(first)  # noqa: S301 (from the process that started this one)
    load_parser()
    gc.freeze()  # what is here now stays; collecting it again and again would cost a tenth of the time
    write_frame(answers, b"{}")
    while (request := read_frame(requests)) is not None:
        asked = json.loads(request)
        reading = read_request(asked["command"], asked["argv"], asked["variables"])
        write_frame(answers, decide(policy, reading).to_json())


if __name__ == "__main__":
    main()
