"""`python -m megalith.ps`."""

import os
import sys

from megalith.runtime.imports import imports_of

with imports_of("services"):
    from megalith.ps.config import PsConfig
    from megalith.ps.server import run
    from megalith.runtime import command_line

sys.exit(command_line.main("ps", PsConfig, run, sys.argv[1:], os.environ))
