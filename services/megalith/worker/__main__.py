"""`python -m megalith.worker`."""

import os
import sys

from megalith.errors.extras import needed

with needed("services"):
    from megalith.runtime import command_line
    from megalith.worker.config import WorkerConfig
    from megalith.worker.server import run

sys.exit(command_line.main("worker", WorkerConfig, run, sys.argv[1:], os.environ))
