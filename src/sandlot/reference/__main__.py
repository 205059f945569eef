"""``python -m sandlot.reference [FOLDER]`` writes all generated pages, by default to docs/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from sandlot.reference.pages import PAGES


def main(folder: Path) -> None:
    for name, generate in PAGES.items():
        (folder / name).write_text(generate(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
