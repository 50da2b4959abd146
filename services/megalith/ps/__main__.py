"""`python -m megalith.ps`."""

import os
import sys

from megalith.wire.extras import needed

with needed("services"):
    from megalith.ps.config import PsConfig
    from megalith.ps.server import run
    from megalith.runtime import settings

sys.exit(settings.main("ps", PsConfig, run, sys.argv[1:], os.environ))
