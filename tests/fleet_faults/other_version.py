"""The command line of another version of Sandlot, as far as the fleet can tell."""

from __future__ import annotations

import sys

import sandlot

sandlot.__version__ = sys.argv.pop(1)

from sandlot.cli.main import main  # noqa: E402  after the version, which others take over at their import

main()
