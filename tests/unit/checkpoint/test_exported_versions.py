"""The folder of exported models, of which an export may have died."""

import os
import shutil
import socket
import time

import pytest

from megalith.checkpoint.exported import about, versions
from megalith.checkpoint.exported.about import ExportedModel


def model_of(version):
    return ExportedModel(version, "model.ckpt-1", 0, 1, 1.0, 1.0, ())


def test_what_a_killed_export_left_is_removed_by_the_next_and_a_running_one_is_not(tmp_path):
    left = tmp_path / f"{versions.WORK}{socket.gethostname()}-0badcafe"
    left.mkdir()
    (left / "table-0000-t.arrow").write_bytes(b"rows")
    other = tmp_path / "exported by hand"
    other.mkdir()
    with versions.begun(tmp_path) as first:
        assert not left.exists()
        with versions.begun(tmp_path) as second:
            assert first.is_dir()
            assert second.is_dir()

    assert list(tmp_path.iterdir()) == [other]


def test_an_export_that_fails_leaves_nothing(tmp_path):
    def fail():
        with versions.begun(tmp_path) as work:
            (work / "table-0000-t.arrow").write_bytes(b"rows")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()

    assert not list(tmp_path.iterdir())


def test_what_another_machine_has_begun_stays_for_a_day(tmp_path):
    """A lock of a shared folder may say nothing about another machine."""
    other = tmp_path / f"{versions.WORK}elsewhere-0badcafe"
    other.mkdir()
    rows = other / "table-0000-t.arrow"
    rows.write_bytes(b"rows")
    with versions.begun(tmp_path):
        assert rows.exists()

    long_ago = time.time() - 2 * 86_400
    for path in (rows, other):
        os.utime(path, (long_ago, long_ago))

    with versions.begun(tmp_path):
        assert not other.exists()


def test_of_two_exports_without_locks_that_want_one_name_one_gets_the_next(tmp_path, monkeypatch):
    def list_before_the_other(base):
        found = all_versions(base)
        if not found:
            faster = tmp_path / "7"
            faster.mkdir()
            about.write(faster, model_of(7))

        return found

    all_versions = versions.all_versions
    monkeypatch.setattr(versions, "all_versions", list_before_the_other)
    with versions.begun(tmp_path) as work:
        directory, model = versions.publish(work, tmp_path, model_of(7))

    assert directory == tmp_path / "8"
    assert model.version == about.read(directory).version == 8
    assert about.read(tmp_path / "7").version == 7


def test_a_version_that_goes_has_no_name_from_the_first_moment(tmp_path, monkeypatch):
    for number in (7, 8):
        (tmp_path / str(number)).mkdir()
        about.write(tmp_path / str(number), model_of(number))

    def die(path, ignore_errors=False):
        raise KeyboardInterrupt

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        versions.clean_up(tmp_path, tmp_path / "model")

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert versions.all_versions(tmp_path) == [tmp_path / "8"]
    with versions.begun(tmp_path):
        left = [path.name for path in tmp_path.glob(f"{versions.WORK}*")]

    assert not [name for name in left if "removing" in name]


def test_a_version_that_another_export_removes_meanwhile_is_no_error(tmp_path, monkeypatch):
    for number in (7, 8):
        (tmp_path / str(number)).mkdir()
        about.write(tmp_path / str(number), model_of(number))

    def read_and_lose(directory):
        found = read(directory)
        if directory.name == "7":
            shutil.rmtree(directory)

        return found

    read = about.read
    monkeypatch.setattr(about, "read", read_and_lose)
    assert versions.clean_up(tmp_path, tmp_path / "model") == []
