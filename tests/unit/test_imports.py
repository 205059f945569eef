"""No module of the package imports itself through others: what a circle joins cannot be read, or moved, alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = "sandlot"

Graph = Mapping[str, set[str]]


def module_files(source: Path, package: str) -> dict[str, Path]:
    files = {}
    for path in sorted((source / package).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(tree: ast.AST, package: str) -> Iterator[tuple[str, str | None]]:
    """Every import, wherever it stands: those for types alone and those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from ((base, alias.name) for alias in node.names)


def import_graph(source: Path, package: str) -> Graph:
    """Which modules each module imports. A name that is a module counts as that module."""
    files = module_files(source, package)
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        targets = set()
        tree = ast.parse(path.read_text(), str(path))
        inside = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for base, name in imported(tree, inside):
            target = f"{base}.{name}" if f"{base}.{name}" in files else base
            if target in files and target != module:
                targets.add(target)
        graph[module] = targets
    return graph


def circle_in(graph: Graph) -> str | None:
    """One circle, from importer to imported; None if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return None


def test_no_import_circles() -> None:
    graph = import_graph(SOURCE, PACKAGE)
    assert len(graph) > 100
    circle = circle_in(graph)
    assert circle is None, f"modules import each other in a circle: {circle}"


def test_a_circle_of_types_is_found_and_named(tmp_path: Path) -> None:
    room = tmp_path / "house" / "room"
    room.mkdir(parents=True)
    (tmp_path / "house" / "__init__.py").write_text("from house.a import A\n")
    (room / "__init__.py").write_text("")
    (tmp_path / "house" / "a.py").write_text("from house.room import b\n")
    (room / "b.py").write_text("def later():\n    from . import c\n")
    (room / "c.py").write_text("if TYPE_CHECKING:\n    from ..a import A\n")
    circle = circle_in(import_graph(tmp_path, "house"))
    assert circle is not None
    names = circle.split(" -> ")
    assert names[0] == names[-1]
    start = names.index("house.a")
    ordered = [*names[start:-1], *names[:start]]
    assert ordered == ["house.a", "house.room.b", "house.room.c"]
