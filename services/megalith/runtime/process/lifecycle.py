"""The life of a service process: signals, logging, and one way to end."""

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Protocol

from megalith.errors import MegalithError
from megalith.runtime.monitoring.logs import configure_logging
from megalith.runtime.process import file_limit

logger = logging.getLogger(__name__)

SIGNALLED = 128  # exit statuses above it: stopped in good order by the signal of that number more
# What open calls get to finish; with closing sockets and files a stop stays under 5 s
DRAIN_S = 3.0


class ExitRequest:
    """How any part of a process asks it to end. The first request decides the exit status."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()  # guards `status` and `reason` until the event is set
        self.status = 0
        self.reason = ""
        # True for a process that only lingers: whatever stops it then is no failure.
        self.is_work_done = False

    def request(self, status: int, reason: str) -> None:
        """End with `status`; safe from any thread, any number of times."""
        with self._lock:
            if not self._event.is_set():
                self.status = status
                self.reason = reason
                self._event.set()

    def wait(self) -> None:
        """Block until the end is requested."""
        self._event.wait()


class Service(Protocol):
    """What a composition root returns."""

    def start(self) -> None:
        """Bind, then go on in background threads.

        On failure everything already started is stopped.
        """

    def stop(self, grace_s: float) -> None:
        """Stop accepting, report NOT_SERVING, drain for at most `grace_s`, flush, close."""


def run(
    name: str, build: Callable[[ExitRequest], Service], *, log_level: str, exit_with_stdin: bool
) -> int:
    """Run a service until a signal or the service itself ends it, then end the process.

    The process ends with the exit status that was requested. Returns only when the service did not
    start.
    """
    configure_logging(name, log_level)
    faulthandler.enable()
    file_limit.raise_soft_limit()
    exit_request = ExitRequest()
    _serve_signals(exit_request, is_status_telling=exit_with_stdin)
    if exit_with_stdin:
        watch = partial(_watch_stdin, exit_request)
        threading.Thread(target=watch, name="stdin-watch", daemon=True).start()

    try:
        service = build(exit_request)
        service.start()
    except (MegalithError, OSError) as error:
        logger.error("%s did not start: %s", name, error)
        return 1

    exit_request.wait()
    status = exit_request.status
    level = logging.ERROR if 0 < status < SIGNALLED else logging.INFO
    logger.log(level, "%s stops: %s", name, exit_request.reason)

    try:
        service.stop(DRAIN_S)
    except Exception:
        logger.exception("%s did not stop cleanly", name)
        status = status or 1

    logger.info("%s stopped status=%d", name, status)
    logging.shutdown()
    # Not sys.exit: the interpreter would wait for pool threads, and a call that outlived the drain
    # still holds one.
    os._exit(status)


def _serve_signals(exit_request: ExitRequest, *, is_status_telling: bool) -> None:
    """SIGTERM and SIGINT end the process, SIGUSR1 writes the stacks of all threads.

    A process that a signal stops exits with 0, unless `is_status_telling`. Then it exits with 128 +
    the signal, as a shell says it: who started it sees that the work was not done. One that only
    lingers has done it, and exits with 0.

    The interpreter's C handler writes each signal's number into a pipe, whichever thread received
    it, and a thread of its own reads them: it answers while the main thread is stuck in a lock, and
    unlike a handler it may wait for one.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    # Python writes into the pipe only for signals that have a handler.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _do_nothing)

    earlier = signal.getsignal(signal.SIGUSR1)
    if not callable(earlier):  # one that a program has set for itself goes on being called
        signal.signal(signal.SIGUSR1, _do_nothing)

    read = partial(_read_signals, reader, exit_request, is_status_telling)
    threading.Thread(target=read, name="signals", daemon=True).start()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """For a signal that the thread of `_read_signals` answers."""


def _read_signals(reader: int, exit_request: ExitRequest, is_status_telling: bool) -> None:
    while True:
        for number in os.read(reader, 1):
            if number == signal.SIGUSR1:
                # Holding the GIL: `faulthandler.register` walks frames that other threads are
                # leaving, and crashes.
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
            else:
                is_told = is_status_telling and not exit_request.is_work_done
                status = SIGNALLED + number if is_told else 0
                name = signal.Signals(number).name
                exit_request.request(status, name)


def _watch_stdin(exit_request: ExitRequest) -> None:
    """End with the process that started this one: however that dies, its end of the pipe closes."""
    while os.read(sys.stdin.fileno(), 4096):
        pass

    exit_request.request(0, "the starting process is gone")
