"""Puts the pages of the repository in the order of the site: ``python docs/site/stage.py FOLDER``.

The pages stay where the forge shows them. Here each gets its place on the site, and its links lead there.
``make site`` then builds the folder with MkDocs.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from links import Links

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Pages outside of docs/, and their places.
OTHERS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "explanation/architecture-of-the-code.md",
    "SECURITY.md": "project/security.md",
    "SCOPE.md": "project/scope.md",
    "PROMISES.md": "project/promises.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "deploy/README.md": "howto/deploy.md",
    "agent/README.md": "explanation/agent.md",
    "src/sandlot/worker/README.md": "explanation/worker.md",
    "src/sandlot/fleet/README.md": "explanation/fleet.md",
    "src/sandlot/api/README.md": "explanation/api.md",
    "src/sandlot/testing/README.md": "reference/testing.md",
}
# Moved from their folder, to where readers look for them.
MOVED = {
    "docs/cookbook/README.md": "cookbook/index.md",
    "docs/comparison.md": "explanation/comparison.md",
    "docs/howto/develop.md": "project/develop.md",
    "docs/howto/release.md": "project/release.md",
    "docs/reference/findings.md": "project/findings.md",
}

# The sections, each with its pages in the order to read them. Pages that are not named follow by name.
FIRST = {
    "howto/Start": "local-mode agents mcp code environments custom-image e2b-provider system-prompt",
    "howto/Files": "workspaces hibernation rewind volumes artifacts object-storage warm_content",
    "howto/Network": "network previews secrets package-cache",
    "howto/Users and rules": "keys limits history recordings webhooks command-policies",
    "howto/Operate": "console deploy scaling fleet-operations troubleshooting",
    "howto/Move": "move-from-e2b e2b-sdk e2b-sdk-methods move-from-local-shell upgrade-to-0.3 upgrade-to-0.2",
    "cookbook/Recipes": "index agent-that-remembers best-of-ten undo web-app packages ask-a-person api-key "
    "analysis users ci-job fleet from-e2b",
    "operations/Run it": "watching alerts capacity procedures backup traces",
    "reference/Interfaces": "sdk cli http errors settings sessions events metrics agent-tools testing",
    "reference/Guarantees": "faults attacks agent-protocol",
    "explanation/Sandlot": "architecture isolation what-is-kept why-docker-and-redis comparison",
    "explanation/The code": "architecture-of-the-code agent worker fleet api",
}
SECTIONS = {
    "tutorial": "Tutorial",
    "howto": "How-to",
    "cookbook": "Cookbook",
    "operations": "Operations",
    "reference": "Reference",
    "explanation": "Explanation",
    "project": "Project",
}
LANGUAGES = {".conf": "nginx", ".service": "ini", ".yml": "yaml"}


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pages = places()
    links = Links(ROOT, pages)
    texts = {place: links.rewritten(source, (ROOT / source).read_text()) for source, place in pages.items()}
    for place, text in texts.items():
        write(folder / "docs" / place, plain_fences(text))
    for source, place in links.files.items():
        if place.endswith(".md"):
            write(folder / "docs" / place, as_page(source))
        else:
            (folder / "docs" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder / "docs" / place)
    shutil.copytree(HERE / "look", folder / "docs/look")
    (folder / "mkdocs.yml").write_text((HERE / "mkdocs.yml").read_text() + navigation(texts))


def places() -> dict[str, str]:
    """Each page of the repository, and its place on the site."""
    own = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return OTHERS | {path: MOVED.get(path, path.removeprefix("docs/")) for path in own}


def navigation(texts: dict[str, str]) -> str:
    """As YAML. A new page has a place without being named here."""
    left = dict(sorted(texts.items()))
    tree: list[dict[str, Any]] = [{"Home": "index.md"}]
    left.pop("index.md")
    for folder, title in SECTIONS.items():
        entries: list[Any] = []
        for group in (name for name in FIRST if name.startswith(f"{folder}/")):
            named = [f"{folder}/{name}.md" for name in FIRST[group].split()]
            entries.append({group.partition("/")[2]: [entry(each, left) for each in named if each in left]})
        others = [entry(each, left) for each in list(left) if each.startswith(f"{folder}/")]
        if entries and others:
            others = [{"More": others}]
        if entries or others:
            tree.append({title: [*entries, *others]})
    tree += [entry(place, left) for place in list(left)]
    return yaml.safe_dump({"nav": tree}, allow_unicode=True, sort_keys=False)


def entry(place: str, left: dict[str, str]) -> dict[str, str]:
    heading = re.search(r"^# (.+)$", left.pop(place), re.MULTILINE)
    if heading is None:
        raise SystemExit(f"{place} has no title")
    return {heading[1].replace("`", ""): place}


def plain_fences(text: str) -> str:
    """What the tests read behind a block's language is not for the site."""
    return re.sub(r"^```(\w+) \w+$", r"```\1", text, flags=re.MULTILINE)


def as_page(source: str) -> str:
    suffix = PurePosixPath(source).suffix
    language = LANGUAGES.get(suffix, suffix.removeprefix("."))
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {source}\n\n"
    return f"{head}~~~~~{language}\n{(ROOT / source).read_text()}~~~~~\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
