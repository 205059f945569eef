"""An image's labels name variables that hold in sandboxes, and not in builds that start from the image."""

from __future__ import annotations

import pytest

from sandlot.domain.errors import InvalidRequest
from sandlot.providers.docker.images.preparing import _check_usable, _sandbox_variables

LABEL = "sandlot.variable."


def test_labels_add_variables() -> None:
    config = {"Env": ["LANG=C.UTF-8", "A=b=c"], "Labels": {LABEL + "PIP_RETRIES": "1", "other": "x"}}
    assert _sandbox_variables(config) == ["LANG=C.UTF-8", "A=b=c", "PIP_RETRIES=1"]


def test_what_a_later_build_sets_wins() -> None:
    config = {"Env": ["PIP_RETRIES=5"], "Labels": {LABEL + "PIP_RETRIES": "1"}}
    assert _sandbox_variables(config) == ["PIP_RETRIES=5"]


@pytest.mark.parametrize(
    ("env", "path"),
    [
        (["PATH=/opt/go/bin:/usr/bin"], "/workspace/.venv/bin:/opt/go/bin:/usr/bin"),
        (None, "/workspace/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ],
)
def test_a_path_comes_before_the_images_own(env: list[str] | None, path: str) -> None:
    config = {"Env": env, "Labels": {LABEL + "PATH": "/workspace/.venv/bin"}}
    assert _sandbox_variables(config) == [f"PATH={path}"]


def test_an_image_without_either() -> None:
    assert _sandbox_variables({}) == []


@pytest.mark.parametrize("name", ["", "1A", "A=B", "A B", "A\n", "É"])
def test_a_label_must_end_in_the_name_of_a_variable(name: str) -> None:
    with pytest.raises(InvalidRequest, match="does not end in the name of a variable"):
        _check_usable("mine:1", {"Labels": {LABEL + name: "x"}})
