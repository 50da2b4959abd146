"""`python -m megalith.controller`."""

from megalith.controller.config import ControllerConfig
from megalith.controller.server import run
from megalith.runtime.settings import command

command("controller", ControllerConfig, run)()
