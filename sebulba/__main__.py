"""``python -m sebulba`` is the command line."""

from sebulba.cli.main import main

main()
