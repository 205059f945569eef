"""What clients write never becomes an instruction of its own, and the engine expands nothing in it."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import SandlotError
from sandlot.domain.templates.build import NewTemplate, Plan, Step, StepKind, is_inside
from sandlot.providers.docker.builds.dockerfile import dockerfile

HASH = "0a" * 32
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)


def checked(*steps: Step) -> list[str] | None:
    """The lines of the Dockerfile after its first three; None if the steps are refused."""
    try:
        Plan(steps, image="debian:12").check()
    except SandlotError:
        return None
    return dockerfile("debian:12", steps).text.removesuffix("\n").split("\n")[3:]


@given(TEXT)
def test_a_command_stays_one_instruction(command: str) -> None:
    lines = checked(Step(StepKind.RUN, (command,)))
    if lines is not None:
        (line,) = lines
        assert json.loads(line.removeprefix("RUN "))[-1] == command


def expanded(text: str) -> str:
    """What the engine makes of a word: it takes a backslash away, and expands a dollar without one."""
    out, at = [], 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
        else:
            assert text[at] != "$", "it would be expanded"
        out.append(text[at])
        at += 1
    return "".join(out)


@given(TEXT)
def test_a_value_stays_what_it_is(value: str) -> None:
    lines = checked(Step(StepKind.ENV, ("NAME", value)))
    if lines is not None:
        (line,) = lines
        name, quoted = line.removeprefix("ENV ").split("=", 1)
        assert (name, quoted[0], quoted[-1]) == ("NAME", '"', '"')
        assert expanded(quoted[1:-1]) == value


@given(TEXT, TEXT)
def test_paths_stay_what_they_are(source: str, target: str) -> None:
    lines = checked(Step(StepKind.COPY, (source, target, "", ""), HASH))
    if lines is not None:
        (line,) = lines
        command, owner, paths = line.split(" ", 2)
        assert (command, owner) == ("COPY", "--chown=1000:1000")
        first, second = map(expanded, json.loads(paths))
        assert first.startswith(f"files/{HASH}")
        assert second == target


@given(TEXT)
def test_a_folder_stays_what_it_is(folder: str) -> None:
    lines = checked(Step(StepKind.WORKDIR, (folder,)))
    if lines is not None:
        (line,) = lines
        assert expanded(line.removeprefix('WORKDIR "').removesuffix('"')) == folder


def test_an_error_names_the_step_of_the_client() -> None:
    steps = (
        Step(StepKind.USER, ("root",)),
        Step(StepKind.RUN, ("true",)),
        Step(StepKind.COPY, ("a", "/a", "root", "0644"), HASH),
    )
    file = dockerfile("debian:12", steps)
    assert file.step_of == {4: 2, 5: 3}
    assert "--chown=0:0" in file.text
    assert shlex.split(file.text.split("\n")[0]) == ["FROM", "debian:12"]


@pytest.mark.parametrize(
    "step",
    [
        Step(StepKind.RUN, ("",)),
        Step(StepKind.RUN, ("a\0b",)),
        Step(StepKind.RUN, ("true", "postgres")),
        Step(StepKind.ENV, ("A",)),
        Step(StepKind.ENV, ("A B", "c")),
        Step(StepKind.ENV, ("A", "b\nRUN c")),
        Step(StepKind.WORKDIR, ("/a\nRUN b",)),
        Step(StepKind.COPY, ("a", "/a"), None),
        Step(StepKind.COPY, ("a", "/a"), "../etc"),
        Step(StepKind.COPY, ("../a", "/a"), HASH),
        Step(StepKind.COPY, ("/a", "/a"), HASH),
        Step(StepKind.COPY, ("a", "/a", "", "u+x"), HASH),
        Step(StepKind.COPY, ("a", "/a", "me", ""), HASH),
    ],
)
def test_a_bad_step_is_refused(step: Step) -> None:
    assert checked(step) is None


@pytest.mark.parametrize("image", ["a b", "a\nRUN b", "--platform=x", "", "${A}"])
def test_a_bad_image_is_refused(image: str) -> None:
    with pytest.raises(SandlotError):
        Plan((), image=image).check()


def test_a_build_begins_with_one_thing() -> None:
    for image, environment in ((None, None), ("a", "b")):
        with pytest.raises(SandlotError):
            Plan((), image=image, environment=environment).check()


@pytest.mark.parametrize("name", ["", "A", "a:b", "../a", "a" * 64])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(SandlotError):
        NewTemplate(name).check()


def test_names_that_stay_inside() -> None:
    assert all(map(is_inside, ("a", "a/b", ".", "./a", "a/../b", "..a")))
    assert not any(map(is_inside, ("..", "../a", "a/../../b", "/a")))
