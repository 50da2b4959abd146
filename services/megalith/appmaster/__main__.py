"""`python -m megalith.appmaster`."""

import os
import sys

from megalith.runtime.config.imports import imports_of

with imports_of("services"):
    from megalith.appmaster.config import AppMasterConfig
    from megalith.appmaster.server import run
    from megalith.runtime.config import command_line

sys.exit(command_line.main("appmaster", AppMasterConfig, run, sys.argv[1:], os.environ))
