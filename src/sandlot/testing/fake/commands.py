"""The commands of the fake's shell. Each does only what tests need of the real one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from sandlot.domain.errors import FileProblem
from sandlot.testing.fake.file_commands import FILE_COMMANDS, option_letters
from sandlot.testing.fake.network.curl import curl
from sandlot.testing.fake.pipes import Bytes
from sandlot.testing.fake.shell import ExitShell, Process, Program, Shell, State
from sandlot.testing.fake.tree import USER_ID, Folder, Regular, error_text


async def _true(process: Process) -> int:
    return 0


async def _false(process: Process) -> int:
    return 1


async def _exit(process: Process) -> int:
    raise ExitShell(_number(process.arguments[0]) & 0xFF if process.arguments else process.state.status)


async def _cd(process: Process) -> int:
    target = process.arguments[0] if process.arguments else process.state.variables.get("HOME", "/")
    path = process.path(target)
    process.tree.folder(path)
    process.state.cwd = process.tree.locate(path).path
    process.state.variables["PWD"] = process.state.cwd
    return 0


async def _pwd(process: Process) -> int:
    await process.out(process.state.cwd + "\n")
    return 0


async def _export(process: Process) -> int:
    for argument in process.arguments:
        name, given, value = argument.partition("=")
        process.state.variables[name] = value if given else process.state.variables.get(name, "")
        process.state.exported.add(name)
    return 0


async def _unset(process: Process) -> int:
    for name in process.arguments:
        process.state.variables.pop(name, None)
        process.state.exported.discard(name)
    return 0


async def _env(process: Process) -> int:
    if process.arguments:
        return await process.refuse("no arguments")
    await process.out("".join(f"{name}={value}\n" for name, value in sorted(process.variables.items())))
    return 0


async def _echo(process: Process) -> int:
    words = process.arguments
    if words and re.fullmatch("-[neE]*[eE][neE]*", words[0]):
        return await process.refuse("-n; use printf")
    if words[:1] == ("-n",):
        await process.out(" ".join(words[1:]))
    else:
        await process.out(" ".join(words) + "\n")
    return 0


_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "\\": "\\", '"': '"'}


def _unescape(text: str) -> bytes:
    """Resolves the escapes of printf: characters, octal and hexadecimal bytes."""
    encoded, at = b"", 0
    for match in _ESCAPE.finditer(text):
        encoded += text[at : match.start()].encode("utf-8", "surrogateescape")
        if match[1] or match[2]:
            encoded += bytes([(int(match[1], 8) if match[1] else int(match[2], 16)) & 0xFF])
        else:
            encoded += _ESCAPED.get(match[3], "\\" + match[3]).encode()
        at = match.end()
    return encoded + text[at:].encode("utf-8", "surrogateescape")


async def _printf(process: Process) -> int:
    """Knows %s, %d and %%, and repeats the format while there are arguments."""
    if not process.arguments:
        return await process.fail("usage: printf format [arguments]", 2)
    template, values = process.arguments[0], list(process.arguments[1:])
    if "%" in re.sub("%[sd%]", "", template):
        return await process.refuse("%s, %d and %%")
    while True:
        printed = b""
        for piece in re.split(r"(%[sd%])", template):
            if piece in ("%s", "%d"):
                value = values.pop(0) if values else ("" if piece == "%s" else "0")
                printed += value.encode("utf-8", "surrogateescape")
            else:
                printed += b"%" if piece == "%%" else _unescape(piece)
        await process.streams.stdout.write(printed)
        if not values or not re.search(r"%[sd]", template):
            return 0


async def _open_inputs(
    process: Process, paths: tuple[str, ...]
) -> tuple[list[tuple[str, Bytes | None]], int]:
    """Opens the named files, None for stdin. An unreadable file prints an error: code 1."""
    found: list[tuple[str, Bytes | None]] = []
    code = 0
    for path in paths or ("-",):
        if path == "-":
            found.append((path, None))
            continue
        try:
            found.append((path, Bytes(bytes(process.tree.content(process.path(path))))))
        except FileProblem as error:
            code = await process.fail(f"{path}: {error_text(error)}")
    return found, code


async def _cat(process: Process) -> int:
    inputs, code = await _open_inputs(process, process.arguments)
    for _, source in inputs:
        while piece := await (source or process.streams.stdin).read():
            await process.streams.stdout.write(piece)
    return code


async def _head(process: Process) -> int:
    """Knows -c N and -n N, and prints ten lines by default."""
    unit, count, rest = "-n", 10, process.arguments
    if rest[:1] in (("-c",), ("-n",)) and len(rest) > 1:
        unit, count, rest = rest[0], _number(rest[1]), rest[2:]
    inputs, code = await _open_inputs(process, rest)
    for _, source in inputs:
        left = count
        while left > 0 and (piece := await (source or process.streams.stdin).read()):
            if unit == "-c":
                piece = piece[:left]
                left -= len(piece)
            else:
                lines = piece.splitlines(keepends=True)[:left]
                left -= sum(line.endswith(b"\n") for line in lines)
                piece = b"".join(lines)
            await process.streams.stdout.write(piece)
    return code


async def _wc(process: Process) -> int:
    """Knows -c and -l, for stdin or files."""
    unit, rest = process.arguments[:1], process.arguments[1:]
    if unit not in (("-c",), ("-l",)):
        return await process.refuse("-c and -l")
    inputs, code = await _open_inputs(process, rest)
    for path, source in inputs:
        count = 0
        while piece := await (source or process.streams.stdin).read():
            count += len(piece) if unit == ("-c",) else piece.count(b"\n")
        await process.out(f"{count}\n" if path == "-" else f"{count} {path}\n")
    return code


async def _read(process: Process) -> int:
    names = [argument for argument in process.arguments if argument != "-r"]
    if len(names) > 1 or names[:1] != [name for name in names[:1] if name[:1] != "-"]:
        return await process.refuse("-r and one name")
    line = bytearray()
    while (piece := await process.streams.stdin.read(1)) and piece != b"\n":
        line += piece
    if names:
        process.state.variables[names[0]] = line.decode("utf-8", "surrogateescape").strip()
    return 0 if piece else 1


async def _seq(process: Process) -> int:
    if not 1 <= len(process.arguments) <= 2 or any(not _is_number(each) for each in process.arguments):
        return await process.refuse("LAST, and FIRST LAST, in whole numbers")
    numbers = [_number(argument) for argument in process.arguments]
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    for begin in range(first, last + 1, 1000):
        await process.out("".join(f"{number}\n" for number in range(begin, min(begin + 1000, last + 1))))
    return 0


async def _yes(process: Process) -> int:
    lines = (" ".join(process.arguments or ("y",)) + "\n") * 4000
    while True:
        await process.out(lines)
        await asyncio.sleep(0)


async def _sleep(process: Process) -> int:
    try:
        seconds = sum(float(argument) for argument in process.arguments)
    except ValueError:
        return await process.fail(f"invalid time interval '{process.arguments[0]}'")
    await asyncio.sleep(seconds)
    return 0


async def _test(process: Process) -> int:
    words = list(process.arguments)
    if process.words[0] == "[":
        if words[-1:] != ["]"]:
            return await process.fail("missing `]'", 2)
        words.pop()
    negated = words[:1] == ["!"]
    holds = _evaluate(process, words[negated:])
    if holds is None:
        return await process.refuse("one comparison, and ! before it")
    return int(holds is negated)


def _evaluate(process: Process, words: list[str]) -> bool | None:
    """Evaluates a test expression. Returns None if this shell does not know it."""
    match words:
        case []:
            return False
        case [word]:
            return word != ""
        case ["-n", word]:
            return word != ""
        case ["-z", word]:
            return word == ""
        case ["-t", _]:
            return process.shell.machine.terminal() is not None
        case ["-e" | "-f" | "-d" | "-s" as kind, path]:
            try:
                node = process.tree.find(process.path(path))
            except FileProblem:
                return False
            wanted = {"-e": True, "-f": isinstance(node, Regular), "-d": isinstance(node, Folder)}
            return wanted.get(kind, isinstance(node, Regular) and bool(node.data))
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" as operator, right]:
            a, b = _number(left), _number(right)
            return {
                "-eq": a == b,
                "-ne": a != b,
                "-lt": a < b,
                "-le": a <= b,
                "-gt": a > b,
                "-ge": a >= b,
            }[operator]
    return None


async def _whoami(process: Process) -> int:
    await process.out("sandboxuser\n")
    return 0


async def _id(process: Process) -> int:
    if process.arguments not in ((), ("-u",), ("-g",)):
        return await process.refuse("-u and -g")
    if process.arguments:
        await process.out(f"{USER_ID}\n")
    else:
        await process.out(f"uid={USER_ID}(sandboxuser) gid={USER_ID}(sandboxuser)\n")
    return 0


async def _stty(process: Process) -> int:
    if process.arguments != ("size",):
        return await process.refuse("size")
    size = process.shell.machine.terminal()
    if size is None:
        return await process.fail("'standard input': Inappropriate ioctl for device")
    await process.out(f"{size[0]} {size[1]}\n")
    return 0


async def _bash(process: Process) -> int:
    """Runs ``-c text``, or lines from stdin, with a prompt on a terminal."""
    options, rest = option_letters(process)
    if "--login" in process.arguments:
        options -= set("-login")
    if options - set("lics") or len(rest) != ("c" in options):
        return await process.refuse("-c TEXT, and commands from stdin; -l, -i and -s")
    state = State(process.state.cwd, dict(process.variables), set(process.variables))
    shell = Shell(process.shell.machine, state)
    try:
        if "c" in options:
            return await shell.run_text(rest[0], process.streams)
        while True:
            if process.shell.machine.terminal() is not None:
                await process.out("$ ")
            line = bytearray()
            while (piece := await process.streams.stdin.read(1)) and piece != b"\n":
                line += piece
            if not piece and not line:
                return state.status
            await shell.run_text(line.decode("utf-8", "surrogateescape"), process.streams)
    except ExitShell as ended:
        return ended.code


def _is_number(text: str) -> bool:
    return re.fullmatch("-?[0-9]+", text) is not None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


COMMANDS: Mapping[str, Program] = {
    ":": _true,
    "true": _true,
    "false": _false,
    "exit": _exit,
    "cd": _cd,
    "pwd": _pwd,
    "export": _export,
    "unset": _unset,
    "env": _env,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "head": _head,
    "wc": _wc,
    "read": _read,
    "seq": _seq,
    "yes": _yes,
    "sleep": _sleep,
    "test": _test,
    "[": _test,
    "whoami": _whoami,
    "id": _id,
    **FILE_COMMANDS,
    "curl": curl,
    "stty": _stty,
    "bash": _bash,
    "sh": _bash,
}
