"""Prints the API's description: ``python -m sandlot.api.openapi > docs/reference/openapi.json``."""

from __future__ import annotations

import json
import sys

from sandlot.api.app import routed_app


def description() -> str:
    """The same text for the same routes, always."""
    return json.dumps(routed_app().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(description())
