"""``python -m sebulba`` is the command line."""

from sebulba.cli import main

main()
