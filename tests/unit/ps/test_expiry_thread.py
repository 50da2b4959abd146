import logging
import threading

from megalith.ps.expiry_thread import ExpiryThread


def test_it_goes_on_after_an_error_says_what_it_dropped_and_ends_when_it_is_stopped(caplog):
    before = set(threading.enumerate())
    calls, third = [], threading.Event()

    def expire():
        calls.append(len(calls))
        if len(calls) == 1:
            raise MemoryError("no room to look")
        if len(calls) == 3:
            third.set()
        return {"a": len(calls), "b": 0}

    thread = ExpiryThread(expire, 0.001)
    with caplog.at_level(logging.INFO):
        thread.start()
        assert third.wait(60)
        thread.stop()
    count = len(calls)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:3] == ["expiry failed", "expired a=2", "expired a=3"]
    started = set(threading.enumerate()) - before
    assert not [running for running in started if running.name == "expiry"]
    assert len(calls) == count


def test_zero_seconds_means_never():
    thread = ExpiryThread(lambda: 1 / 0, 0.0)
    thread.start()
    thread.stop()
