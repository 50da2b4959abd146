"""Files that are read before they are needed: in their order, each once, and within the memory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.restoring.read_ahead import ReadAhead
from megalith.errors import CheckpointDamaged
from support.waiting import wait_until

FOLDER = Path("increment")


def file_of(number, size=10):
    return ShardFile(
        name=f"f{number}", kind=FileKind.TABLE, table="t", rows=1, bytes=size, sha256="", buckets=""
    )


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Storage:
    """Notes what is read; a damaged file is an error."""

    def __init__(self, damaged=()):
        self._lock = threading.Lock()
        self._damaged = damaged
        self.read = []

    def __call__(self, directory, file):
        with self._lock:
            self.read.append(file.name)
        if file.name in self._damaged:
            raise CheckpointDamaged(file.name)
        return file.name


def ahead_of(files, storage, pool, most_bytes):
    return ReadAhead([(FOLDER, file) for file in files], storage, pool, most_bytes)


def test_as_many_files_are_read_ahead_as_there_is_room_for(pool):
    files = [file_of(number) for number in range(10)]
    storage = Storage()
    ahead = ahead_of(files, storage, pool, 35)
    wait_until(lambda: len(storage.read) == 3)
    assert ahead.take(FOLDER, files[0]) == "f0"
    wait_until(lambda: len(storage.read) == 4)
    for file in files[1:]:
        assert ahead.take(FOLDER, file) == file.name
    assert sorted(storage.read) == sorted(file.name for file in files)
    assert ahead.take(FOLDER, files[0]) is None


def test_a_file_that_is_too_large_is_left_to_the_caller_and_holds_up_no_other(pool):
    files = [file_of(0, 100), file_of(1), file_of(2, 100), file_of(3)]
    storage = Storage()
    ahead = ahead_of(files, storage, pool, 20)
    assert [ahead.take(FOLDER, file) for file in files] == [None, "f1", None, "f3"]
    assert sorted(storage.read) == ["f1", "f3"]


def test_a_file_that_is_taken_before_its_turn_is_left_to_the_caller(pool):
    files = [file_of(0), file_of(1)]
    storage = Storage()
    ahead = ahead_of(files, storage, pool, 10)
    assert ahead.take(FOLDER, files[1]) is None
    assert ahead.take(FOLDER, files[0]) == "f0"
    assert storage.read == ["f0"]


def test_an_error_is_that_of_whoever_takes_the_file(pool):
    files = [file_of(0), file_of(1)]
    ahead = ahead_of(files, Storage(damaged=("f1",)), pool, 100)
    assert ahead.take(FOLDER, files[0]) == "f0"
    with pytest.raises(CheckpointDamaged, match="f1"):
        ahead.take(FOLDER, files[1])
