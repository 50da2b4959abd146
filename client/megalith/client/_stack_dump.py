"""What a program is doing: its stacks, whenever somebody sends it a signal."""

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from megalith.errors import InvalidRequest

_STDERR = 2  # the descriptor: a notebook's sys.stderr is no file
_MOST_THREADS = 100  # that faulthandler writes: the newest ones, and the main thread is the oldest


def write_stacks_on_sigusr1() -> None:
    """From now on `kill -USR1 PID` writes the stacks of all threads to stderr.

    Of more than 100 threads it writes the main thread and the 100 newest. The program goes on. A
    handler that was there before is called first, also if it raises. To ask for this a second time
    changes nothing. Megalith's own processes do it by themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest("write_stacks_on_sigusr1: signals are handled by the main thread only")

    earlier = signal.getsignal(signal.SIGUSR1)
    if not isinstance(earlier, _StackDump):
        dump = _StackDump(earlier if callable(earlier) else None)
        signal.signal(signal.SIGUSR1, dump)


class _StackDump:
    """A handler that writes the stacks after another handler has run."""

    def __init__(self, earlier: Callable[[int, FrameType | None], object] | None) -> None:
        self._earlier = earlier

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            if self._earlier is not None:
                self._earlier(number, frame)
        finally:
            if len(sys._current_frames()) > _MOST_THREADS:
                faulthandler.dump_traceback(_STDERR, all_threads=False)

            # Holding the GIL: `faulthandler.register` walks frames that other threads are leaving.
            faulthandler.dump_traceback(_STDERR, all_threads=True)
