"""What reading one text may cost, over all scripts inside it. Beyond, the text is not understood."""

from __future__ import annotations

from typing import Final

from sandlot.bash.parsing import Parsed, parse


class OverBudget(Exception):
    """The text is too large; the message says how, as the end of "It …"."""


class Budget:
    MAX_BYTES: Final = 64 * 1024  # of the text and all scripts in it, together
    MAX_DEPTH: Final = 100  # nodes, wrappers and scripts inside each other
    MAX_STEPS: Final = 1000
    MAX_WORDS: Final = 5000
    MAX_DOUBTS: Final = 50
    MAX_FOLDERS: Final = 8

    def __init__(self) -> None:
        self._bytes = 0
        self._depth = 0
        self._steps = 0
        self._words = 0

    def parse(self, text: str) -> Parsed:
        self._bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > self.MAX_BYTES:
            raise OverBudget(f"is longer than {self.MAX_BYTES} bytes")
        return parse(text)

    def enter(self) -> None:
        """One level deeper. A reading that goes over its budget ends, so nothing has to be undone then."""
        self._depth += 1
        if self._depth > self.MAX_DEPTH:
            raise OverBudget(f"is nested more than {self.MAX_DEPTH} levels deep")

    def leave(self) -> None:
        self._depth -= 1

    def count_step(self) -> None:
        self._steps += 1
        if self._steps > self.MAX_STEPS:
            raise OverBudget(f"does more than {self.MAX_STEPS} things")

    def count_words(self, words: int) -> None:
        self._words += words
        if self._words > self.MAX_WORDS:
            raise OverBudget(f"has more than {self.MAX_WORDS} words")

    def check_folders(self, folders: list[str]) -> None:
        if len(folders) > self.MAX_FOLDERS:
            raise OverBudget(f"changes its folder more than {self.MAX_FOLDERS} times")
