"""`python -m megalith.cli`: the `megalith` command where no script is installed."""

from megalith.cli.app import main

main()
