"""`python -m megalith.controller`."""

import os
import sys

from megalith.runtime.config.imports import imports_of

with imports_of("services"):
    from megalith.controller.config import ControllerConfig
    from megalith.controller.server import run
    from megalith.runtime.config import command_line

sys.exit(command_line.main("controller", ControllerConfig, run, sys.argv[1:], os.environ))
