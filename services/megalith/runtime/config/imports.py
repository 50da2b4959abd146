"""Imports of a command line: they take most of a second, and one of them may be missing."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from megalith.errors.extras import needed


@contextmanager
def imports_of(extra: str) -> Iterator[None]:
    """Around imports that a command needs.

    Ctrl-C ends the process at once and without a traceback. A missing module that the extra brings
    ends it with one line. gRPC, if it is among them, logs nothing by itself.
    """
    # Read when grpc is imported. Its own lines say again, to the terminal, what our errors say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    is_main = threading.current_thread() is threading.main_thread()
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_main or not is_usual:
        with needed(extra):
            yield
        return

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with needed(extra):
            yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
