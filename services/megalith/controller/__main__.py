"""`python -m megalith.controller`."""

import os
import sys

from megalith.errors.extras import needed

with needed("services"):
    from megalith.controller.config import ControllerConfig
    from megalith.controller.server import run
    from megalith.runtime import command_line

sys.exit(command_line.main("controller", ControllerConfig, run, sys.argv[1:], os.environ))
