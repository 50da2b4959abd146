"""`python -m megalith.worker`."""

import os
import sys

from megalith.runtime import blas
from megalith.runtime.freed_memory import keep_freed_memory
from megalith.runtime.imports import imports_of

blas.use_one_thread()
keep_freed_memory()

with imports_of("services"):
    from megalith.runtime import command_line
    from megalith.worker.config import WorkerConfig
    from megalith.worker.server import run

sys.exit(command_line.main("worker", WorkerConfig, run, sys.argv[1:], os.environ))
