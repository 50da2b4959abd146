"""Waiting for what another thread or process does."""

import sys
import threading
import time
import traceback
from concurrent.futures import Future

# A limit ends a test that hangs; it never measures. A busy machine needs several times as long as
# an idle one, so a test names a limit of its own only where this one is too short.
LIMIT_S = 60.0


def wait_until(predicate, timeout_s=LIMIT_S, what=""):
    """Return the first true value of `predicate`; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or predicate}")
        time.sleep(0.01)


def ended(call, what, timeout_s=LIMIT_S):
    """What `call` returns or raises; AssertionError with the stacks of all threads if it hangs.

    For what ends a test. The time limit of a test interrupts one wait, in its main thread: a wait
    that follows, such as that of the next server to stop, would last for good, and nobody would
    hear of the test.
    """
    outcome = Future()

    def run():
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=what, daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except TimeoutError:
        if outcome.done():
            raise
        raise AssertionError(f"not within {timeout_s} s: {what}\n{_stacks()}") from None


def _stacks():
    name_by_ident = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"{name_by_ident.get(ident, ident)}:\n{stack}")

    return "\n".join(parts)
