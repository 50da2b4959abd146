"""`python -m megalith.replica`."""

import os
import sys

from megalith.runtime.config.imports import imports_of
from megalith.runtime.process import blas

blas.use_one_thread()

with imports_of("services"):
    from megalith.replica.config import ReplicaConfig
    from megalith.replica.server import run
    from megalith.runtime.config import command_line

sys.exit(command_line.main("replica", ReplicaConfig, run, sys.argv[1:], os.environ))
