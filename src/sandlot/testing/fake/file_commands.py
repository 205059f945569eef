"""The commands of the fake's shell that work on files and folders."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.domain.errors import FileProblem
from sandlot.testing.fake.shell import Process, Program
from sandlot.testing.fake.tree import Folder, error_text


def option_letters(process: Process) -> tuple[set[str], list[str]]:
    """Returns the option letters and the other arguments."""
    letters = {letter for word in process.arguments if word[:1] == "-" for letter in word[1:]}
    return letters, [word for word in process.arguments if word[:1] != "-"]


async def _ls(process: Process) -> int:
    """Prints one name per line; -A and -a show hidden ones."""
    options, paths = option_letters(process)
    if options - set("aA1"):
        return await process.refuse("-a, -A and -1")
    code = 0
    for path in paths or ["."]:
        try:
            node = process.tree.find(process.path(path))
        except FileProblem as error:
            code = await process.fail(f"cannot access '{path}': {error_text(error)}", 2)
            continue
        names = sorted(node.children) if isinstance(node, Folder) else [path]
        shown = [name for name in names if options & {"a", "A"} or not name.startswith(".")]
        await process.out("".join(f"{name}\n" for name in shown))
    return code


async def _mkdir(process: Process) -> int:
    options, paths = option_letters(process)
    if options - {"p"}:
        return await process.refuse("-p")
    for path in paths:
        try:
            process.tree.mkdir(process.path(path), parents="p" in options)
        except FileProblem as error:
            return await process.fail(f"cannot create directory '{path}': {error_text(error)}")
    return 0


async def _rm(process: Process) -> int:
    options, paths = option_letters(process)
    if options - set("rRf"):
        return await process.refuse("-r, -R and -f")
    code = 0
    for path in paths:
        try:
            full = process.path(path)
            if not options & {"r", "R"} and isinstance(process.tree.find(full, follow=False), Folder):
                code = await process.fail(f"cannot remove '{path}': Is a directory")
                continue
            process.tree.remove(full, recursive=True)
        except FileProblem as error:
            if "f" not in options or error.reason != "not_found":
                code = await process.fail(f"cannot remove '{path}': {error_text(error)}")
    return code


async def _mv(process: Process) -> int:
    options, paths = option_letters(process)
    if options - {"f"} or len(paths) != 2:
        return await process.refuse("SOURCE DESTINATION")
    source, destination = paths
    process.tree.move(process.path(source), process.path(destination), overwrite=True)
    return 0


async def _ln(process: Process) -> int:
    """Knows only -s: makes a link to its first argument under the name of its second."""
    options, names = option_letters(process)
    if options != {"s"} or len(names) != 2:
        return await process.refuse("-s TARGET NAME")
    process.tree.link(process.path(names[1]), names[0])
    return 0


async def _touch(process: Process) -> int:
    options, paths = option_letters(process)
    if options:
        return await process.refuse("no options")
    for path in paths:
        process.tree.open_file(process.path(path))
    return 0


FILE_COMMANDS: Mapping[str, Program] = {
    "ls": _ls,
    "mkdir": _mkdir,
    "rm": _rm,
    "mv": _mv,
    "ln": _ln,
    "touch": _touch,
}
