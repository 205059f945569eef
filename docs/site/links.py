"""Where a link of a page leads on the site. On the forge, the same link leads to a file of the repository."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path, PurePosixPath

FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
CODE = re.compile(r"(`+)(?:(?!\1).)+\1")


class BrokenLinkError(Exception):
    """A page links to what the repository does not have."""


class Links:
    """Rewrites the links of pages, and collects the files besides pages that they show."""

    def __init__(self, root: Path, pages: dict[str, str]) -> None:
        self._root = root
        self._pages = pages  # path in the repository → path on the site
        self.files: dict[str, str] = {}

    def rewritten(self, source: str, text: str) -> str:
        """The text of a page, with links that are right at its place on the site."""
        lines: list[str] = []
        fence = ""
        for line in text.splitlines():
            mark = FENCE.match(line)
            if fence:
                fence = "" if mark and mark[1].startswith(fence) else fence
            elif mark:
                fence = mark[1]
            else:
                line = self._line(source, line)
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _line(self, source: str, line: str) -> str:
        code = [found.span() for found in CODE.finditer(line)]

        def moved(found: re.Match[str]) -> str:
            if any(begin < found.start() < end for begin, end in code):
                return found[0]
            return self._target(source, found[0])

        return re.sub(r"(?<=\]\()[^()\s]+(?=\))", moved, line)

    def _target(self, source: str, target: str) -> str:
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return target
        path, mark, fragment = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if wanted not in self._pages:
            if not (self._root / wanted).is_file():
                raise BrokenLinkError(f"{source} links to {target}, and {wanted} is no file")
            self.files[wanted] = shown_at(wanted)
        place = self._pages.get(wanted) or self.files[wanted]
        return os.path.relpath(place, posixpath.dirname(self._pages[source]) or ".") + mark + fragment


def shown_at(path: str) -> str:
    """Where the site has a file that is no page: pictures as they are, the rest as a page with its text."""
    if PurePosixPath(path).suffix in (".png", ".svg") or path.endswith("openapi.json"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"
