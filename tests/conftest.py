"""What holds for all tests."""

import faulthandler
import os
import signal
from collections.abc import Generator

import pytest
import pytest_timeout
from hypothesis import settings

# A first call compiles a kernel, and a loaded machine is slow: the time of one example says
# nothing. Examples are the same in every run, so that a build says something about the change it
# builds; MEGALITH_EXPLORE=1 tries others.
settings.register_profile(
    "megalith", deadline=None, derandomize="MEGALITH_EXPLORE" not in os.environ
)
settings.load_profile("megalith")

# A shell that starts the tests in the background has them ignore SIGINT, and what they start
# inherits that: nobody could press Ctrl-C in an example script.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-timeout raises in the main thread, once. A test whose main thread is in C code then goes
# on for ever, and so does one whose clean-up waits for what the test left half done. A test that
# is this much later than its limit ends its process, which first prints the stacks of all threads.
GRACE_S = 60.0
LIMIT_S = pytest.StashKey[float]()
TERMINAL = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        config.stash[TERMINAL] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(
    item: pytest.Item, settings: pytest_timeout.Settings
) -> Generator[None, object, object]:
    item.stash[LIMIT_S] = settings.timeout + GRACE_S
    _watch(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Watch anew, because pytest stops any such watch when a test has failed."""
    if LIMIT_S in item.stash:
        _watch(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    faulthandler.cancel_dump_traceback_later()
    return (yield)


def _watch(item: pytest.Item) -> None:
    terminal = item.config.stash[TERMINAL]
    faulthandler.dump_traceback_later(item.stash[LIMIT_S], exit=True, file=terminal)
