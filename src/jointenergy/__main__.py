"""jointenergy: `python -m jointenergy` is the command."""

from jointenergy.cli.main import main

main()
