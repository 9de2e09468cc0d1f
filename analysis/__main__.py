"""`python -m analysis` is the `analysis` command."""

from analysis.commands.main import main

main()
