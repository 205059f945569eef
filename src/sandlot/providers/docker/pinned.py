"""Images that are named by digest (``name@sha256:…``): found, or refused if what is here is another.

The digest is the one of a registry, or the id of an image that was built here and has none of a registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.domain.errors import ImageMissing, NotFound
from sandlot.providers.docker.engine import Engine


async def find_image(engine: Engine, reference: str) -> dict[str, Any]:
    """What the engine says of the image. ``ImageMissing`` or ``NotFound`` if it is not here."""
    name, _, digest = reference.partition("@")
    try:
        image = await engine.inspect_image(reference)
    except (ImageMissing, NotFound):
        if not digest:
            raise
        image = await engine.inspect_image(name)  # the engine knows a built image's id, but not as a digest
    check_digest(reference, image)
    return image


def check_digest(reference: str, image: Mapping[str, Any]) -> None:
    name, _, digest = reference.partition("@")
    has = {str(image["Id"]), *(one.partition("@")[2] for one in image.get("RepoDigests") or ())}
    if digest and digest not in has:
        raise ImageMissing(
            f"the image {name} on this machine is {image['Id']}, and the environment names {digest}; "
            f"fetch that one with: docker pull {reference}, or name this one",
            details={"image_id": str(image["Id"])},
        )
