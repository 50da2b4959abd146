import pytest

from megalith.runtime.files import prepare_model_dir, write_atomically
from megalith.wire.errors import InvalidSetting


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
