"""Finds images named by digest (``name@sha256:…``), and refuses an image with another digest.

The digest comes from a registry. For an image that was built here and has no registry digest, it is
the image's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.domain.errors import ImageMissing, NotFound
from sandlot.providers.docker.engine import Engine


async def find_image(engine: Engine, reference: str) -> dict[str, Any]:
    """Returns the engine's description of the image.

    Raises ``ImageMissing`` or ``NotFound`` if the image is not on this machine.
    """
    name, _, digest = reference.partition("@")
    try:
        image = await engine.inspect_image(reference)
    except (ImageMissing, NotFound):
        if not digest:
            raise
        image = await engine.inspect_image(name)  # a built image has an id but no digest
    check_digest(reference, image)
    return image


def check_digest(reference: str, image: Mapping[str, Any]) -> None:
    name, _, digest = reference.partition("@")
    digests = {str(image["Id"]), *(found.partition("@")[2] for found in image.get("RepoDigests") or ())}
    if digest and digest not in digests:
        raise ImageMissing(
            f"Image {name} on this machine is {image['Id']}, but the environment names {digest}. Run "
            f"`docker pull {reference}`, or change the digest in the environment.",
            details={"image_id": str(image["Id"])},
        )
