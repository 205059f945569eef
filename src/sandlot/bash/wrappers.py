"""Programs that run other programs: what ``sudo``, ``xargs``, ``find -exec`` or ``bash -c`` would run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.bash.options import Options, options, skip_options
from sandlot.bash.variables import DECLARING, HIDDEN_IN_QUOTES, assigned, declared, is_read_twice
from sandlot.domain.policy.commands import UNKNOWN, WILDCARD, Word

ANY_WORDS: Final = Word("…", UNKNOWN, many=True)

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
# Files that are the program's own input, or another open file.
_INPUT_FILE: Final = re.compile(r"-|/dev/stdin|/dev/fd/.*|/proc/.*/fd/.*")


@dataclass(frozen=True, slots=True)
class Runs:
    """What a program runs, apart from itself.

    commands: programs with their arguments.
    scripts: bash text.
    assigns: variables that it sets.
    folder: where it runs them.
    reads_script: it reads a script from its input.
    doubts: why that is not clear.
    """

    commands: Sequence[Sequence[Word]] = ()
    scripts: Sequence[Word] = ()
    assigns: Sequence[str] = ()
    folder: Word | None = None
    reads_script: bool = False
    doubts: Sequence[str] = ()


NOTHING: Final = Runs()


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A program whose arguments end in a command.

    operands: how many words come between the options and the command.
    chdir: its options that choose a folder for the command.
    """

    options: Options = field(default_factory=options)
    operands: int = 0
    takes_variables: bool = False
    chdir: tuple[str, ...] = ()


_WRAPPERS: Final[Mapping[str, _Wrapper]] = {
    "sudo": _Wrapper(options(values="-u -g -h -p -C -T -r -t -D -R -U --user --group --host --prompt --chdir",
                             flags="-A -b -E -H -K -k -n -P -S -v -l --preserve-env --stdin --non-interactive"
                                   " --background --set-home --reset-timestamp"),
                     takes_variables=True, chdir=("-D", "--chdir")),
    "doas": _Wrapper(options(values="-u -C -a", flags="-n -L")),
    "env": _Wrapper(options(values="-u --unset -C --chdir", flags="-i - -0 -v --ignore-environment --null"
                                   " --debug --block-signal --default-signal --ignore-signal"),
                    takes_variables=True, chdir=("-C", "--chdir")),
    "nice": _Wrapper(options(values="-n --adjustment", flags="", numbers=True)),
    "ionice": _Wrapper(options(values="-c -n --class --classdata", flags="-t --ignore")),
    "timeout": _Wrapper(options(values="-k -s --kill-after --signal",
                                flags="-p -f -v --preserve-status --foreground --verbose"), operands=1),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(options(flags="-c -f -w --ctty --fork --wait")),
    "stdbuf": _Wrapper(options(values="-i -o -e --input --output --error")),
    "time": _Wrapper(options(values="-f -o --format --output", flags="-p -a -v -q --append --verbose"),
                     takes_variables=True),
    "command": _Wrapper(options(flags="-p")),
    "builtin": _Wrapper(),
    "exec": _Wrapper(options(values="-a", flags="-c -l")),
    "coproc": _Wrapper(takes_variables=True),
    "chroot": _Wrapper(options(values="--userspec --groups", flags="--skip-chdir"), operands=1),
    "taskset": _Wrapper(options(flags="-a -c --cpu-list --all-tasks"), operands=1),
    "chrt": _Wrapper(options(flags="-b -f -i -o -r"), operands=1),
    "unshare": _Wrapper(options(flags="-m -u -i -n -p -U -C -T -f -r --fork --map-root-user --pid --mount")),
    "strace": _Wrapper(options(values="-e -o -s -u", flags="-f -ff -c -t -tt -v -q -y")),
    "gosu": _Wrapper(operands=1),
    "su-exec": _Wrapper(operands=1),
    "fakeroot": _Wrapper(),
    "unbuffer": _Wrapper(options(flags="-p")),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "tini": _Wrapper(options(values="-p -e", flags="-g -s -v -w")),
    "dumb-init": _Wrapper(options(flags="-c -v")),
    "prlimit": _Wrapper(options(flags="--nofile --nproc --core --cpu --as --fsize --data --stack --rss")),
    "setpriv": _Wrapper(options(values="--reuid --regid --groups --inh-caps --ambient-caps --bounding-set",
                                flags="--no-new-privs --clear-groups --init-groups --keep-groups")),
    "setarch": _Wrapper(options(flags="-R -v -B -F -L -3"), operands=1),
    "linux32": _Wrapper(options(flags="-R -v -B -F -L -3")),
    "linux64": _Wrapper(options(flags="-R -v -B -F -L -3")),
    "ltrace": _Wrapper(options(values="-e -o -s -u -l -n", flags="-f -c -C -i -r -S -t -tt -T")),
    "valgrind": _Wrapper(options(flags="-q -v -s")),
    "catchsegv": _Wrapper(),
    "systemd-run": _Wrapper(options(values="-u -p -E --unit --property --uid --gid --setenv --slice",
                                    flags="-t -P -q -G --user --scope --wait --pty --pipe --collect")),
}  # fmt: skip

# The dynamic linker runs the program that its first argument names.
_LOADER: Final = re.compile(r"ld(-linux.*|-musl.*|64)?\.so(\.\d+)*")

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "rbash", "zsh"})
_OTHER_SHELLS: Final = frozenset({"fish", "csh", "tcsh", "pwsh", "xonsh", "nu", "elvish"})
_SHELL_OPTIONS: Final = options(
    values="-o +o -O +O --rcfile --init-file",
    flags="-c -s -i -l -e -u -x -v -n -f -a -b -h -k -m -p -r -t -B -C -E -H -P -T -D --login --posix --norc"
    " --noprofile --noediting --restricted --verbose --debugger +e +u +x +v",
)
_XARGS: Final = options(
    values="-I -n -P -L -d -s -E -a --max-args --max-procs --delimiter --arg-file"
    " --max-chars --process-slot-var",
    # The values of some are optional, and never in the next word.
    flags="--replace --max-lines --eof"
    " -0 -r -t -p -x -o --null --no-run-if-empty --verbose --interactive --exit --open-tty",
)
_SU: Final = options(
    values="-c --command -s --shell -g --group -G -u --user -w --session-command",
    flags="- -l -m -p -P -f --login --preserve-environment --pty --fast",
)
_FLOCK: Final = options(
    values="-w --timeout -E --conflict-exit-code",
    flags="-x -e -s -n -o -u -F --exclusive --shared --nonblock --close --unlock --verbose --no-fork",
)


def what_runs(name: str, arguments: Sequence[Word]) -> Runs:
    """What the program of this name runs with these arguments, apart from itself."""
    if name in _SHELLS:
        return _shell(arguments)
    if name in _OTHER_SHELLS:
        return Runs(doubts=[f"runs {name}, whose language is not bash"])
    special = _SPECIAL.get(name)
    if special is not None:
        return special(arguments)
    if name in DECLARING:
        return Runs(
            assigns=declared(arguments)[0], doubts=[HIDDEN_IN_QUOTES] if is_read_twice(arguments) else []
        )
    wrapper = _WRAPPERS.get(name)
    if wrapper is None and _LOADER.fullmatch(name):
        wrapper = _Wrapper(
            options(values="--library-path --preload --audit --argv0", flags="--inhibit-cache")
        )
    return NOTHING if wrapper is None else _wrapped(name, wrapper, arguments)


def _wrapped(name: str, wrapper: _Wrapper, arguments: Sequence[Word]) -> Runs:
    rest, found, doubts = skip_options(arguments, wrapper.options, name)
    rest = rest[wrapper.operands :]
    folder = next((Word(found[option], found[option]) for option in wrapper.chdir if option in found), None)
    assigns = []
    while wrapper.takes_variables and rest and (variable := _ASSIGNMENT.match(rest[0].text)):
        assigns.append(variable[0][:-1])
        rest = rest[1:]
    if any(word.source in ("{", "}") for word in rest):
        doubts = [*doubts, f"has {name} before braces, which the parser does not read"]
    return Runs(commands=[rest] if rest else [], assigns=assigns, folder=folder, doubts=doubts)


# --- shells ---------------------------------------------------------------------------------------


def _shell(arguments: Sequence[Word]) -> Runs:
    if any(word.text in ("--version", "--help") for word in arguments[:1]):
        return NOTHING
    rest, found, doubts = skip_options(arguments, _SHELL_OPTIONS, "the shell")
    start_files = [found[option] for option in ("--rcfile", "--init-file") if option in found]
    if any(UNKNOWN in file or _INPUT_FILE.fullmatch(file) for file in start_files):
        doubts.append("starts with a script that is not in the text")
    has_script = any(
        option.startswith("-") and not option.startswith("--") and "c" in option for option in found
    )
    if has_script:
        return Runs(scripts=rest[:1], doubts=doubts)
    if not rest or any(not option.startswith("--") and "s" in option for option in found):
        return Runs(reads_script=True, doubts=doubts)
    return _script_file(rest[0], doubts)


def _script_file(file: Word, doubts: Sequence[str] = ()) -> Runs:
    """A script in a file is not looked into; only its name must be known."""
    if not file.known:
        return Runs(doubts=[*doubts, "runs a script whose name is not in the text"])
    return Runs(reads_script=_INPUT_FILE.fullmatch(file.text) is not None, doubts=doubts)


def _source(arguments: Sequence[Word]) -> Runs:
    rest, _, doubts = skip_options(arguments, options(values="-p"), "source")
    return _script_file(rest[0], doubts) if rest else Runs(doubts=doubts)


def _eval(arguments: Sequence[Word]) -> Runs:
    if arguments and arguments[0].text == "--":
        arguments = arguments[1:]
    return Runs(scripts=[_joined(arguments)] if arguments else [])


def _joined(words: Sequence[Word], end: str = "") -> Word:
    return Word(" ".join(word.source for word in words), " ".join(word.text for word in words) + end)


def _trap(arguments: Sequence[Word]) -> Runs:
    if not arguments or arguments[0].text in ("-", "", "-l", "-p"):
        return NOTHING
    first = arguments[1] if arguments[0].text == "--" and len(arguments) > 1 else arguments[0]
    return Runs(scripts=[first])


def _alias(arguments: Sequence[Word]) -> Runs:
    """What an alias stands for runs later, with arguments that nobody knows yet."""
    scripts = []
    for word in arguments:
        _, equals, value = word.text.partition("=")
        if equals:
            scripts.append(Word(word.source, f"{value} $_"))
    return Runs(scripts=scripts)


def _unclear_with(letters: str, effect: str) -> Callable[[Sequence[Word]], Runs]:
    """Unclear with an option of one of these letters, also together with others: ``-tC``."""
    option = re.compile(f"-\\w*[{letters}]|{UNKNOWN}")

    def runs(arguments: Sequence[Word]) -> Runs:
        return Runs(doubts=[effect]) if any(option.match(word.text) for word in arguments) else NOTHING

    return runs


def _assigning(builtin: str) -> Callable[[Sequence[Word]], Runs]:
    def runs(arguments: Sequence[Word]) -> Runs:
        names = assigned(builtin, arguments)
        looked_at = arguments if names else ()
        return Runs(assigns=names, doubts=[HIDDEN_IN_QUOTES] if is_read_twice(looked_at) else [])

    return runs


def _mapfile(arguments: Sequence[Word]) -> Runs:
    runs = _assigning("mapfile")(arguments)
    return replace(runs, doubts=[*runs.doubts, *_unclear_with("C", "calls back by name")(arguments).doubts])


def _computing(arguments: Sequence[Word]) -> Runs:
    """A builtin that computes its arguments, or looks up variables by name."""
    return Runs(doubts=[HIDDEN_IN_QUOTES]) if is_read_twice(arguments) else NOTHING


# --- others ---------------------------------------------------------------------------------------


def _xargs(arguments: Sequence[Word]) -> Runs:
    rest, found, doubts = skip_options(arguments, _XARGS, "xargs")
    if not rest:
        return Runs(doubts=doubts)
    if replaced := found.get("-I") or ("--replace" in found and (found["--replace"] or "{}")):
        return Runs(commands=[_replaced(rest, replaced)], doubts=doubts)
    return Runs(commands=[[*rest, ANY_WORDS]], doubts=doubts)


def _replaced(words: Sequence[Word], mark: str) -> list[Word]:
    return [Word(word.source, word.text.replace(mark, UNKNOWN), word.many) for word in words]


def _find(arguments: Sequence[Word]) -> Runs:
    commands = []
    place = 0
    while place < len(arguments):
        if arguments[place].text in ("-exec", "-execdir", "-ok", "-okdir"):
            end = place + 1
            while end < len(arguments) and arguments[end].text not in (";", "+"):
                end += 1
            commands.append(_replaced(arguments[place + 1 : end], "{}"))
            place = end
        place += 1
    doubts = ["gets options from a variable"] if any(word.many for word in arguments) else []
    return Runs(commands=[command for command in commands if command], doubts=doubts)


def _env(arguments: Sequence[Word]) -> Runs:
    for place, word in enumerate(arguments):
        text = word.text
        for option in ("-S", "--split-string=", "--split-string"):
            if text.startswith(option):
                value = Word(text[len(option) :], text[len(option) :])
                return Runs(scripts=[_joined([value, *arguments[place + 1 :]])])
        if not text.startswith("-"):
            break
    return _wrapped("env", _WRAPPERS["env"], arguments)


def _command(arguments: Sequence[Word]) -> Runs:
    looks_up = arguments and arguments[0].text in ("-v", "-V", "-pv", "-pV")
    return NOTHING if looks_up else _wrapped("command", _WRAPPERS["command"], arguments)


def _sudo(arguments: Sequence[Word]) -> Runs:
    shell = any(word.text in ("-s", "-i", "--shell", "--login") for word in arguments)
    if not shell:
        return _wrapped("sudo", _WRAPPERS["sudo"], arguments)
    rest = [word for word in arguments if word.text not in ("-s", "-i", "--shell", "--login")]
    runs = _wrapped("sudo", _WRAPPERS["sudo"], rest)
    if runs.commands:
        return runs
    return Runs(reads_script=True, doubts=runs.doubts)


def _su(arguments: Sequence[Word]) -> Runs:
    _, found, doubts = skip_options(arguments, _SU, "su", anywhere=True)
    scripts = [Word(value, value) for option, value in found.items() if option in ("-c", "--command")]
    return Runs(scripts=scripts, reads_script=not scripts, doubts=doubts)


def _watch(arguments: Sequence[Word]) -> Runs:
    known = options(values="-n --interval", flags="-b -c -d -e -g -t -x --no-title --errexit --differences")
    rest, _, doubts = skip_options(arguments, known, "watch")
    return Runs(scripts=[_joined(rest)] if rest else [], doubts=doubts)


def _flock(arguments: Sequence[Word]) -> Runs:
    rest, _, doubts = skip_options(arguments, _FLOCK, "flock")
    rest = rest[1:]
    if rest and rest[0].text in ("-c", "--command"):
        return Runs(scripts=rest[1:2], doubts=doubts)
    return Runs(commands=[rest] if rest else [], doubts=doubts)


def _script(arguments: Sequence[Word]) -> Runs:
    known = options(values="-c --command -I -O -B -T -o", flags="-a -e -f -q -t --quiet --append --return")
    _, found, doubts = skip_options(arguments, known, "script", anywhere=True)
    scripts = [Word(value, value) for option, value in found.items() if option in ("-c", "--command")]
    return Runs(scripts=scripts, reads_script=not scripts, doubts=doubts)


def _parallel(arguments: Sequence[Word]) -> Runs:
    doubts = ["runs commands that parallel puts together"]
    words = [word for word in arguments if not word.text.startswith("-")]
    return Runs(commands=[[*words, ANY_WORDS]] if words else [], doubts=doubts)


_SPECIAL: Final[Mapping[str, Callable[[Sequence[Word]], Runs]]] = {
    "alias": _alias,
    "command": _command,
    "at": lambda _: Runs(reads_script=True),
    "batch": lambda _: Runs(reads_script=True),
    "compgen": _unclear_with("CFW", "runs commands for a completion"),
    "complete": _unclear_with("CFW", "runs commands for a completion"),
    "enable": _unclear_with("f", "loads a builtin from a file"),
    "env": _env,
    "eval": _eval,
    "find": _find,
    "flock": _flock,
    "getopts": _assigning("getopts"),
    "hash": _unclear_with("p", "changes which program a name means"),
    "let": _computing,
    "mapfile": _mapfile,
    "parallel": _parallel,
    "printf": _assigning("printf"),
    "read": _assigning("read"),
    "readarray": _mapfile,
    "runuser": _su,
    "script": _script,
    "source": _source,
    ".": _source,
    "su": _su,
    "sudo": _sudo,
    "test": _computing,
    "trap": _trap,
    "wait": _computing,
    "watch": _watch,
    "xargs": _xargs,
}


def as_script(word: Word) -> str | None:
    """A word's text as bash would read it again, or None if a part of it is not known."""
    return word.text.replace(WILDCARD, "*") if word.known else None
