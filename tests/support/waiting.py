"""Waiting for what another thread or process does."""

import time

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
