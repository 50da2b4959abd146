import resource

import pytest

from megalith.runtime.process import file_limit


@pytest.fixture
def limits(monkeypatch):
    """The limits of a pretended system; a list [soft, hard]."""
    now = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(now))
    monkeypatch.setattr(
        resource, "setrlimit", lambda kind, wanted: now.__setitem__(slice(None), wanted)
    )
    return now


def test_the_soft_limit_is_raised_to_the_hard_one_and_said(limits, caplog):
    caplog.set_level("INFO")
    file_limit.raise_soft_limit()
    assert limits == [4096, 4096]
    assert "limit=4096 before=1024" in caplog.text


def test_connections_leave_files_for_checkpoints(limits, caplog):
    assert file_limit.room_for(100, "connections") == 100
    assert file_limit.room_for(4096, "connections") == 768
    assert "768 connections instead of 4096" in caplog.text
