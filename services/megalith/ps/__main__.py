"""`python -m megalith.ps`."""

from megalith.ps.config import PsConfig
from megalith.ps.server import run
from megalith.runtime.settings import command

command("ps", PsConfig, run)()
