"""Reading commands: it never fails, it is bounded, and it sees every program that bash runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandlot.bash.budget import Budget
from sandlot.bash.reading import read_arguments, read_text
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.policy.commands import UNKNOWN, WILDCARD, Assignment, Command, Word, Write
from sandlot.domain.policy.deciding import decide

VALIDATION = shipped_policy("validation")


def programs(text: str) -> list[str]:
    return [step.program for step in read_text(text).steps if isinstance(step, Command)]


def test_words_are_what_bash_makes_of_them() -> None:
    (command,) = read_text(r"""echo a\ b "c $x" 'd'"e" $'\x66' {g,h}i *.py "$@" $(pwd)""").steps[1:]
    assert isinstance(command, Command)
    texts = [word.text for word in command.arguments]
    assert texts == ["a b", f"c {UNKNOWN}", "de", "f", "gi", "hi", "\1.py", UNKNOWN, UNKNOWN]
    assert [word.many for word in command.arguments] == [False] * 7 + [True, True]


def test_redirections_and_assignments_are_steps_of_their_own() -> None:
    steps = read_text("A=1 env B=2 ls > out 2>> err < in").steps
    assert [step.name for step in steps if isinstance(step, Assignment)] == ["A", "B"]
    assert [step.target.text for step in steps if isinstance(step, Write)] == ["out", "err"]


def test_wrappers_and_what_they_run_are_both_seen() -> None:
    assert programs("sudo -u me nice xargs -n 1 bash -c 'ls | wc'") == [
        "sudo", "nice", "xargs", "bash", "ls", "wc",
    ]  # fmt: skip


def test_a_program_with_arguments_is_not_read_as_bash() -> None:
    word, star = "$(rm -rf /)", "*"
    expected = Command("echo", (Word(word, word), Word(star, star)))
    assert read_arguments(["echo", word, star]).steps == (expected,)
    assert programs("bash -c 'rm x'") == ["bash", "rm"]
    inner = read_arguments(["bash", "-c", "rm x"]).steps[1]
    assert isinstance(inner, Command)
    assert inner.program == "rm"


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ls " + "x" * Budget.MAX_BYTES, "bytes"),
        ("(" * 200 + "ls" + ")" * 200, "levels"),
        ("ls;" * (Budget.MAX_STEPS + 1), "things"),
        ("ls" + " x" * (Budget.MAX_WORDS + 1), "words"),
        ("cd /x;" * 20, "folder"),
        ("eval " * 60 + "ls", "levels"),
    ],
)
def test_beyond_its_bounds_a_text_is_not_understood(text: str, why: str) -> None:
    assert any(why in unclear.why for unclear in read_text(text).unclear)
    assert decide(VALIDATION, read_text(text)).ruling == "ask"


def test_many_braces_become_an_unknown_word() -> None:
    (command,) = read_text("rm " + "{a,b}" * 20).steps
    assert isinstance(command, Command)
    assert [word.text for word in command.arguments] == [UNKNOWN]


# --- any text -----------------------------------------------------------------------------------

PIECES = [
    "mark", "mark x", "m", "ark", "m\\ark", "'mark'", '"mark"', "$'mark'", "$'\\x6dark'", "echo ", "cat ",
    "eval ", "bash -c ", "bash <<< ", "trap ", "EXIT", "command ", "exec ", "time ", "coproc ", "a", "x=1 ",
    " ", " ", " ", "\n", "\n", "\t", ";", "&", "&&", "||", "|", "|&", "!", "'", "'", '"', '"', "`", "$(", ")",
    "(", "{ ", "; }", "{", "}", ",", "\\", "\\\n", "\\\\", "\\'", '\\"', "#", " #", "<<E\n", "\nE\n", "E\n",
    " <<'E'\n", "<<-E\n", "\tE\n", " <<\\E\n", "<<E|", "<<<", "$x", "${x:-", "${x#", "$((", "))", "((", "$'",
    '$"', "[[ a =~ ", " ]]", "[", "]", "case a in a) ", ";; esac", "for i in a; do ", "; done", "if ",
    "; then ", "; fi", "f() ", "<(", "> o", "=~", "*", "\r", "\x0b", "\u00a0",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        # Larger characters can crash the parser, in whose own process that is the answer: see test_process.
        st.text(st.characters(max_codepoint=0xFFFF), max_size=300),
        st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    )
)
def test_no_text_makes_reading_or_deciding_fail(text: str) -> None:
    decide(VALIDATION, read_text(text.replace("\0", "")))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=8))
def test_no_arguments_make_reading_or_deciding_fail(argv: list[str]) -> None:
    decide(VALIDATION, read_arguments(argv))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a PATH of its own: bash, and a program that leaves a mark."""
    folder = tmp_path_factory.mktemp("bash")
    (folder / "bin").mkdir()
    (folder / "cwd").mkdir()
    (folder / "bin/bash").symlink_to("/bin/bash")
    (folder / "bin/mark").write_text(f"#!/bin/bash\necho ran > {folder}/marked\n")
    (folder / "bin/list").write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > {folder}/marked\n")
    for program in ("mark", "list"):
        (folder / "bin" / program).chmod(0o755)
    return folder


def leaves_a_mark(text: str, stage: Path) -> bool:
    (stage / "marked").unlink(missing_ok=True)
    (stage / "cwd/i").touch()
    process = subprocess.Popen(
        ["/bin/bash", "-c", text],
        cwd=stage / "cwd",
        env={"PATH": str(stage / "bin")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return (stage / "marked").exists()


def claims_no_mark(text: str) -> bool:
    """Bash finds a script as it finds a program, so ``bash mark`` says it too."""
    reading = read_text(text)
    commands = [step for step in reading.steps if isinstance(step, Command)]
    return not reading.unclear and not any(
        step.program.rpartition("/")[2] == "mark"
        or (step.program == "bash" and any(word.text == "mark" for word in step.arguments))
        for step in commands
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(PIECES), max_size=9).map("".join),
    st.sampled_from(["\nmark\n", ";mark\n", "mark", " mark x"]),
    st.lists(st.sampled_from(PIECES), max_size=9).map("".join),
)
def test_bash_runs_no_program_that_reading_does_not_see(
    stage: Path, before: str, mark: str, after: str
) -> None:
    """The parser reads some text differently from bash. Then reading has to say that it is unclear."""
    text = before + mark + after
    if claims_no_mark(text):
        assert not leaves_a_mark(text, stage)


WORDS = [
    "a", "-r", "/etc", "'b c'", '"d e"', "'$x'", "$'\\x66'", '""', "\\ ", "\\'", "\\\n", " ", " ", " ", "\t", "{g,h}",
    "{", "}", ",", "=", "#", "~", "!", "%", "<i", "< i ", ">o", "> o ", ">>o ", "2>&1", "2>o ", ">&2 ", "<&0 ", "&>o ",
    "<<<j ", "<<< 'k l' ", ">|o ", "x=1 ", "--", "$'m'", "[", "]", "time ", "@", ":",
]  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=10).map("".join))
@example("[\\ ")
@example("a\\\n 2>&1")
@example("a\\ \\\na")
@example("-r2>&1")
@example("-r2<<<j ")
@example("-r2<<E -r3<<F\nE\nF\n")
@example("<<E -r3>o\nE\n")
def test_a_program_gets_the_words_that_reading_sees(stage: Path, words: str) -> None:
    """Also those behind a redirection, which stands anywhere between them."""
    reading = read_text("list " + words)
    commands = [step for step in reading.steps if isinstance(step, Command)]
    if reading.unclear or len(commands) != 1:
        return
    seen = [word.text for word in commands[0].arguments]
    if any(UNKNOWN in text or WILDCARD in text or text.startswith("~") for text in seen):
        return
    if leaves_a_mark("list " + words, stage):
        given = (stage / "marked").read_bytes().decode().split("\0")[:-1]
        assert given == (seen or [""])  # printf prints one empty text if there are no words


# Each of these ran a program that the parser took for something else.
FOUND = [
    "a\n\\\nmark x\n",
    "\\ #a[[[ a =~ ;mark\n",
    "\n<<<\\'[[ a =~ \nmark\n",
    "]|\\'[[ a =~ [[ a =~ \nmark x\n",
    "m\\\nark",
    "cat <<E\nx\\\nE\necho '\nE\nmark\n'",
    "cat <<E\n`mark`\nE\n",
    "cat<<E;mark\nE\n",
    "time { mark; }",
]


@pytest.mark.parametrize("text", FOUND)
def test_known_differences_between_the_parser_and_bash(text: str, stage: Path) -> None:
    assert leaves_a_mark(text, stage)
    assert not claims_no_mark(text)


def test_the_time_for_a_text_of_ordinary_form_grows_with_its_length() -> None:
    line = 'for f in $(ls src); do grep -q x "$f" && echo "$f" >> out; done\n'
    assert read_s(line * 64) < 64 * 4 * read_s(line * 4) / 4


def read_s(text: str) -> float:
    took = []
    for _ in range(5):
        began = time.thread_time()
        read_text(text)
        took.append(time.thread_time() - began)
    return min(took)
