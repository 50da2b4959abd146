"""`python -m megalith.ps`."""

import os
import sys

from megalith.errors.extras import needed

with needed("services"):
    from megalith.ps.config import PsConfig
    from megalith.ps.server import run
    from megalith.runtime import command_line

sys.exit(command_line.main("ps", PsConfig, run, sys.argv[1:], os.environ))
