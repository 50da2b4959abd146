"""`python -m megalith.replica`."""

import os
import sys

from megalith.runtime import blas
from megalith.runtime.imports import imports_of

blas.use_one_thread()

with imports_of("services"):
    from megalith.replica.config import ReplicaConfig
    from megalith.replica.server import run
    from megalith.runtime import command_line

sys.exit(command_line.main("replica", ReplicaConfig, run, sys.argv[1:], os.environ))
