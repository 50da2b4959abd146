import os
import stat

import pytest

from megalith.errors import InvalidSetting
from megalith.runtime.files import (
    NotPlainFile,
    add_line,
    open_plain,
    prepare_model_dir,
    write_atomically,
)
from support.full_disk import files_of_at_most


def test_a_write_replaces_the_content_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_content(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_dir_is_made_when_missing(tmp_path):
    path = prepare_model_dir(str(tmp_path / "a" / "b"))
    assert path.is_dir()
    assert list(path.iterdir()) == []


def test_a_model_dir_that_cannot_be_written_is_refused_by_name(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match=r"directory .*file/sub: not writable"):
        prepare_model_dir(str(tmp_path / "file" / "sub"))


def test_a_missing_model_dir_setting_is_refused():
    with pytest.raises(InvalidSetting, match="--model-dir is not given"):
        prepare_model_dir("")


@pytest.mark.parametrize("mode", ["rb", "ab", "r+b"])
def test_neither_a_link_nor_a_pipe_is_opened_in_place_of_a_file(tmp_path, mode):
    target = tmp_path / "target"
    target.write_text("of somebody else")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(
            NotPlainFile, match="not a plain file"
        ):  # and at once: nobody is at the pipe's other end
            open_plain(tmp_path / name, mode)
    with pytest.raises(IsADirectoryError):
        open_plain(tmp_path, mode)
    assert target.read_text() == "of somebody else"


def test_a_plain_file_is_made_and_never_cut(tmp_path):
    for mode in ("ab", "r+b"):
        with open_plain(tmp_path / mode, mode) as file:
            file.write(b"one")
        with open_plain(tmp_path / mode, mode):
            pass
        assert (tmp_path / mode).read_bytes() == b"one"


def test_a_secret_file_is_for_its_user_alone(tmp_path):
    write_atomically(tmp_path / "file", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_model_dir_of_another_user_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:
        os.chown(tmp_path, 54321, -1)
    prepare_model_dir(str(tmp_path))
    assert "belongs to user" in caplog.text


def test_a_line_that_finds_no_room_leaves_none_of_its_bytes(tmp_path):
    path = tmp_path / "lines"
    add_line(path, "first")
    with files_of_at_most(10), pytest.raises(OSError, match="too large"):
        add_line(path, "second")

    assert path.read_bytes() == b"first\n"
    add_line(path, "third")
    assert path.read_bytes() == b"first\nthird\n"


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"first\nsec")
    add_line(path, "third")
    assert path.read_bytes() == b"first\nsec\nthird\n"
