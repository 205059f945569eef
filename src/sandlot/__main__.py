"""``python -m sandlot`` is the command line."""

from sandlot.cli.main import main

main()
