"""Waiting for what another thread or process does."""

import time

LEAST_S = 60.0  # a limit ends a test that hangs; it never measures, and a busy machine needs several times as long


def wait_until(predicate, timeout_s=LEAST_S, what=""):
    """Return the first true value of `predicate`; AssertionError after `timeout_s`, and not before a minute is over."""
    timeout_s = max(timeout_s, LEAST_S)
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or predicate}")
        time.sleep(0.01)
