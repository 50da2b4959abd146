import errno
import fcntl

from megalith.checkpoint.storage import files as stored


def test_a_folder_that_cannot_be_locked_is_said_once(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(3):
        with stored.locked(tmp_path):
            (tmp_path / "written").touch()
    assert caplog.text.count(f"{tmp_path} cannot be locked") == 1
    assert "No locks available" in caplog.text
