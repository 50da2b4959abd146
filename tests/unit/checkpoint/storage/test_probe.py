import errno
import os
import shutil
import socket

import pytest

from megalith.checkpoint.storage import probe
from megalith.checkpoint.storage.location import locate
from megalith.errors import InvalidSetting
from support import object_stores


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(probe, "_APPEAR_S", 0.2)


@pytest.fixture(params=["path", "memory"])
def directory(request, tmp_path):
    yield tmp_path if request.param == "path" else object_stores.new_folder("memory")
    object_stores.forget_memory()


def test_a_ps_that_sees_the_file_and_can_write_is_fine_and_leaves_nothing(directory):
    left = probe.leave(directory)
    probe.answer(left, "ps-1")
    assert [str(path) for path in directory.iterdir()] == [left.path]
    probe.take_back(left)
    assert list(directory.iterdir()) == []


def test_the_file_of_a_controller_that_died_goes_with_the_next(directory):
    probe.leave(directory)
    second = probe.leave(directory)
    assert [str(path) for path in directory.iterdir()] == [second.path]


def test_a_ps_that_does_not_see_the_file_names_both_sides(directory):
    left = probe.leave(directory)
    locate(left.path).unlink()
    with pytest.raises(InvalidSetting) as error:
        probe.answer(left, "ps-1")

    host = socket.gethostname()
    assert f"the controller on {host}, process {os.getpid()}" in str(error.value)
    assert f"has written {left.path}" in str(error.value)
    assert f"ps-1 on {host}, process {os.getpid()}, finds no such file" in str(error.value)
    assert "do not see the same storage" in str(error.value)


def test_a_ps_that_does_not_see_the_directory_at_all_says_the_same(tmp_path):
    left = probe.leave(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(InvalidSetting, match="finds no such file"):
        probe.answer(left, "ps-1")


def test_a_file_of_another_controller_is_another_storage(directory):
    left = probe.leave(directory)
    other = probe.StorageProbe(left.path, "controller on elsewhere, process 1, 00000000")
    with pytest.raises(InvalidSetting, match=r"controller on elsewhere.*finds b'controller on"):
        probe.answer(other, "ps-1")


def test_a_ps_that_may_only_read_is_refused(tmp_path, monkeypatch):
    left = probe.leave(tmp_path)

    def refuse(path, content):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(probe.files, "write", refuse)
    with pytest.raises(InvalidSetting, match=r"ps-1 on .* may not write into"):
        probe.answer(left, "ps-1")
