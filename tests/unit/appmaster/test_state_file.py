import json

import pytest

from megalith.appmaster.state_file import StateFile
from megalith.errors import AppMasterRunning


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.json"


def test_what_was_put_is_there_after_a_restart(path):
    first = StateFile(path, "app-1")
    first.put("ending", {"reason": "enough"})
    first.put("supervision", {"max_restarts": 3})
    first.close()
    second = StateFile(path, "app-1")
    assert second.section("ending") == {"reason": "enough"}
    assert second.section("supervision") == {"max_restarts": 3}
    assert second.section("savepoints") == {}
    second.close()


def test_the_state_of_another_application_is_not_taken_up(path):
    first = StateFile(path, "app-1")
    first.put("ending", {"reason": "enough"})
    first.close()
    second = StateFile(path, "app-2")
    assert second.section("ending") == {}
    second.put("supervision", {"max_restarts": 1})
    second.close()
    assert json.loads(path.read_text()) == {"app_id": "app-2", "supervision": {"max_restarts": 1}}


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"[]", b'"text"', b"{}", b'{"app_id": "app-1", "ending": 3}', b"\xff\xfe"],
)
def test_a_damaged_file_is_kept_aside_and_the_appmaster_starts(path, garbage):
    path.write_bytes(garbage)
    state = StateFile(path, "app-1")
    assert state.section("ending") == {}
    assert path.with_name("state.json.damaged").read_bytes() == garbage
    state.close()


def test_a_second_appmaster_is_refused_while_the_first_lives(path):
    first = StateFile(path, "app-1")
    with pytest.raises(AppMasterRunning, match="a live AppMaster keeps its state there"):
        StateFile(path, "app-1")
    first.close()
    StateFile(path, "app-1").close()


def test_without_a_path_nothing_is_written(tmp_path):
    state = StateFile(None, "app-1")
    state.put("ending", {"reason": "enough"})
    assert state.section("ending") == {"reason": "enough"}
    assert list(tmp_path.iterdir()) == []
