"""`python -m megalith.ps`."""

import os
import sys

from megalith.runtime.config.imports import imports_of

with imports_of("services"):
    from megalith.ps.config import PsConfig
    from megalith.ps.server import run
    from megalith.runtime.config import command_line

sys.exit(command_line.main("ps", PsConfig, run, sys.argv[1:], os.environ))
