"""Control by files in the model directory."""

import os

import pytest

from megalith.controller.action_file import ActionFile
from megalith.errors import BarrierAlreadyPlaced, NotReady


@pytest.fixture
def calls():
    return []


@pytest.fixture
def look(tmp_path, calls):
    """Leave a request and look: the answer, or None if there is none."""
    actions = ActionFile(tmp_path, lambda: calls.append("save"), lambda: calls.append("stop"))

    def leave_and_look(request):
        response = tmp_path / "monolith_action_response"
        response.unlink(missing_ok=True)
        if request is not None:
            (tmp_path / "monolith_action").write_bytes(request)
        actions.look()
        assert not (tmp_path / "monolith_action").exists()
        return response.read_text() if response.exists() else None

    return leave_and_look


@pytest.mark.golden("Extra.action_file")
@pytest.mark.parametrize(
    ("request_text", "done"),
    [(b"action: TRIGGER_SAVE", "save"), (b"action: STOP\n", "stop"), (b"# now\naction: 1", "save")],
)
def test_a_request_is_obeyed_once_and_removed(look, calls, request_text, done):
    assert look(request_text) == "OK"
    assert look(None) is None
    assert calls == [done]


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        (b"action: UNKNOWN", "Unknown action: action: UNKNOWN"),
        (b"", "Unknown action: "),
        (b"action: DANCE", "no value named DANCE. The actions are TRIGGER_SAVE and STOP."),
        (b"action TRIGGER_SAVE", "Expected"),
        (b"\xff\xfe\x00", "Expected"),
        (b"x" * 1_000_000, "no field named"),
    ],
)
def test_anything_else_is_answered_with_what_is_wrong_and_removed(
    look, calls, request_text, answer
):
    assert answer in look(request_text)
    assert calls == []


@pytest.mark.parametrize(
    "error", [NotReady("cannot save: waiting for ps-1"), BarrierAlreadyPlaced("placed already")]
)
def test_what_cannot_be_done_is_answered_with_the_reason(tmp_path, error):
    def fail():
        raise error

    (tmp_path / "monolith_action").write_text("action: TRIGGER_SAVE")
    ActionFile(tmp_path, fail, fail).look()
    assert (tmp_path / "monolith_action_response").read_text() == str(error)
    assert not (tmp_path / "monolith_action").exists()


def test_a_request_whose_action_fails_unforeseen_is_not_obeyed_again(tmp_path):
    (tmp_path / "monolith_action").write_text("action: STOP")
    with pytest.raises(ZeroDivisionError):
        ActionFile(tmp_path, lambda: None, lambda: 1 / 0).look()
    assert not (tmp_path / "monolith_action").exists()


def test_a_pipe_or_a_link_is_not_read_and_blocks_nobody(tmp_path, calls):
    secret = tmp_path / "secret"
    secret.write_text("password: hunter2")
    request = tmp_path / "monolith_action"
    actions = ActionFile(tmp_path, lambda: calls.append("save"), lambda: calls.append("stop"))
    for put in (
        lambda: os.mkfifo(request),
        lambda: request.symlink_to(secret),
        lambda: request.hardlink_to(secret),
    ):
        put()
        actions.look()
        assert not request.exists()
        answer = (tmp_path / "monolith_action_response").read_text()
        assert answer.startswith("monolith_action: ")
        assert "hunter2" not in answer
    assert calls == []
    assert secret.read_text() == "password: hunter2"
