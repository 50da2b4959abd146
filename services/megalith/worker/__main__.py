"""`python -m megalith.worker`."""

import os
import sys

from megalith.wire.extras import needed

with needed("services"):
    from megalith.runtime import settings
    from megalith.worker.config import WorkerConfig
    from megalith.worker.server import run

sys.exit(settings.main("worker", WorkerConfig, run, sys.argv[1:], os.environ))
