"""`python -m search` is the `search` command."""

from search.cli.main import main

main()
