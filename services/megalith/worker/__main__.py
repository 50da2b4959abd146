"""`python -m megalith.worker`."""

import os
import sys

from megalith.runtime.config.imports import imports_of
from megalith.runtime.process import blas
from megalith.runtime.process.freed_memory import keep_freed_memory

blas.use_one_thread()
keep_freed_memory()

with imports_of("services"):
    from megalith.runtime.config import command_line
    from megalith.worker.config import WorkerConfig
    from megalith.worker.server import run

sys.exit(command_line.main("worker", WorkerConfig, run, sys.argv[1:], os.environ))
