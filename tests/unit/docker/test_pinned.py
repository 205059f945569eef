"""S14: an image that is named by digest is that image and no other."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.config.test_registry import DEFAULTS

from sandlot.cli.doctor import checks
from sandlot.config.registry.loading import load_registry
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import ImageMissing, InvalidRequest
from sandlot.providers.docker.images.pinned import check_digest

ID, OF_REGISTRY, OTHER = (f"sha256:{letter * 64}" for letter in "abc")
IMAGE: dict[str, Any] = {"Id": ID, "RepoDigests": [f"team/tools@{OF_REGISTRY}"]}


@pytest.mark.parametrize("reference", ["team/tools", f"team/tools@{ID}", f"team/tools:1@{OF_REGISTRY}"])
def test_s14_image_that_is_meant(reference: str) -> None:
    check_digest(reference, IMAGE)


@pytest.mark.parametrize("image", [IMAGE, {"Id": ID}, {"Id": ID, "RepoDigests": None}])
def test_s14_another_image_is_refused(image: dict[str, Any]) -> None:
    with pytest.raises(ImageMissing) as caught:
        check_digest(f"team/tools@{OTHER}", image)
    assert ID in caught.value.message
    assert OTHER in caught.value.message


def test_s14_doctor_says_which_image_it_is() -> None:
    pinned = f"sandlot/base@{OTHER}"
    recipes = {
        name: Recipe(Environment(name, image)) for name, image in (("a", "sandlot/base"), ("b", pinned))
    }
    here, missing = checks.check_images({"sandlot/base": ID, pinned: None}, recipes)
    assert ID in here.message
    assert missing.fix == f"Run `docker pull {pinned}`."  # a new build has another id


@pytest.mark.parametrize(("image", "right"), [(f"team/tools@{ID}", True), ("team/tools@sha256:abc", False)])
def test_s14_registry_takes_whole_digests(tmp_path: Any, image: str, right: bool) -> None:
    folder = tmp_path / "environments"
    folder.mkdir()
    (folder / "mine.yaml").write_text(f"name: mine\ndescription: Mine.\nimage: {image}\n")
    if right:
        assert load_registry(tmp_path, defaults=DEFAULTS).recipes["mine"].environment.image == image
    else:
        with pytest.raises(InvalidRequest, match="sha256:abc"):
            load_registry(tmp_path, defaults=DEFAULTS)
