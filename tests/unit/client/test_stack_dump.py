import os
import signal
import threading

import pytest

from megalith.client import errors, write_stacks_on_sigusr1


@pytest.fixture(autouse=True)
def _handler():
    """The handler of this process is afterwards what it was."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def raised_and_written(capfd):
    signal.raise_signal(signal.SIGUSR1)
    return capfd.readouterr().err.count("Current thread")


@pytest.mark.golden("G15")
def test_installed_twice_a_signal_writes_the_stacks_once_and_raises_nothing(capfd):
    write_stacks_on_sigusr1()
    write_stacks_on_sigusr1()
    assert raised_and_written(capfd) == 1


@pytest.mark.golden("G15")
def test_an_earlier_handler_is_called_first_each_time(capfd):
    heard = []
    signal.signal(
        signal.SIGUSR1, lambda number, frame: heard.append((number, frame.f_code.co_name))
    )
    write_stacks_on_sigusr1()
    write_stacks_on_sigusr1()
    assert raised_and_written(capfd) == 1
    assert raised_and_written(capfd) == 1
    assert heard == [(signal.SIGUSR1, "raised_and_written")] * 2


def test_stacks_are_written_also_if_the_earlier_handler_raises(capfd):
    def fail(number, frame):
        raise errors.InvalidRequest("of the program")

    signal.signal(signal.SIGUSR1, fail)
    write_stacks_on_sigusr1()
    with pytest.raises(errors.InvalidRequest, match="of the program"):
        signal.raise_signal(signal.SIGUSR1)
    assert "Current thread" in capfd.readouterr().err


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_process_that_had_no_handler_goes_on(capfd, ignored):
    signal.signal(signal.SIGUSR1, ignored)
    write_stacks_on_sigusr1()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert raised_and_written(capfd) >= 1


def test_the_main_thread_is_written_also_beside_a_hundred_others(capfd):
    """faulthandler writes the hundred newest threads, and this one is the oldest."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, args=(30,)) for _ in range(110)]
    for thread in threads:
        thread.start()

    write_stacks_on_sigusr1()
    signal.raise_signal(signal.SIGUSR1)
    done.set()
    for thread in threads:
        thread.join()
    written = capfd.readouterr().err
    assert "test_the_main_thread_is_written_also_beside_a_hundred_others" in written


def test_every_thread_is_written(capfd):
    done = threading.Event()

    def wait_in_a_function_of_this_name():
        done.wait(30)

    thread = threading.Thread(target=wait_in_a_function_of_this_name)
    thread.start()
    write_stacks_on_sigusr1()
    signal.raise_signal(signal.SIGUSR1)
    done.set()
    thread.join()
    written = capfd.readouterr().err
    assert "wait_in_a_function_of_this_name" in written
    assert "test_every_thread_is_written" in written


def test_only_the_main_thread_may_ask_for_it():
    found = []

    def ask():
        try:
            write_stacks_on_sigusr1()
        except errors.InvalidRequest as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == ["write_stacks_on_sigusr1: signals are handled by the main thread only"]
