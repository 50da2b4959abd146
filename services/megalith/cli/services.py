"""`megalith controller`, `ps`, `worker`, `replica` and `appmaster`: one process of a cluster each.

They take what `python -m megalith.<service>` takes. A service is imported when it runs.
"""

from importlib import import_module
from typing import Any

from megalith.runner.config import SERVICES
from megalith.runtime.config.command_line import service_command
from megalith.runtime.config.commands import Command


def _service(name: str) -> Command:
    def run(config: Any) -> int:
        status: int = import_module(f"megalith.{name}.server").run(config)
        return status

    return service_command(name, SERVICES[name], run)


controller = _service("controller")
ps = _service("ps")
worker = _service("worker")
replica = _service("replica")
appmaster = _service("appmaster")
