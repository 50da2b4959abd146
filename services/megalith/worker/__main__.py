"""`python -m megalith.worker`."""

import os
import sys

from megalith.errors.extras import needed
from megalith.runtime import blas

blas.use_one_thread()

with needed("services"):
    from megalith.runtime import command_line
    from megalith.worker.config import WorkerConfig
    from megalith.worker.server import run

sys.exit(command_line.main("worker", WorkerConfig, run, sys.argv[1:], os.environ))
