"""Says when a kernel is compiled, because the request that needs it waits for some seconds."""

import logging
import re

from numba.core import event

logger = logging.getLogger(__name__)

# How numba spells the stage of an optimizer among the types of arguments
_STAGE = re.compile(r"(\w+)\(int64, int64, int64, int64, float32, ")


class CompileLog(event.Listener):
    """Logs what numba compiles. What it finds in its cache is not compiled.

    numba calls it under its compiler lock, so one kernel is under way at a time, with the functions
    that it calls inside it; those are not logged.
    """

    def __init__(self) -> None:
        self._depth = 0

    def on_start(self, event: event.Event) -> None:
        self._depth += 1
        if self._depth > 1:
            return

        kernel = event.data["dispatcher"].py_func
        arguments = str(event.data["args"])
        optimizers = dict.fromkeys(_STAGE.findall(arguments))
        logger.info(
            "compiling the kernel %s%s (once on a machine); a request that needs it waits",
            kernel.__name__,
            f" of {', '.join(optimizers)}" if optimizers else "",
        )

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1


def log_compilations() -> None:
    """From now on, in this process."""
    event.register("numba:compile", CompileLog())  # type: ignore[no-untyped-call]  # of numba
