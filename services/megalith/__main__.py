"""`python -m megalith`: the `megalith` command where no script is installed."""

from megalith.cli.entry import main

main()
