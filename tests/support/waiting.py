"""Waiting for what another thread or process does."""

import time


def wait_until(predicate, timeout_s=30.0, what=""):
    """Return the first true value of `predicate`; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or predicate}")
        time.sleep(0.01)
