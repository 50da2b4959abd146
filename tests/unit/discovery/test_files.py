import fcntl
import os
import signal
import subprocess
import sys

import pytest

from megalith.discovery.files import FileDiscovery
from megalith.errors import DiscoveryFailed
from support.waiting import wait_until

ADDRESS = "10.0.0.1:1000"

_REGISTER_AND_WAIT = """
import sys
from pathlib import Path
from megalith.discovery.files import FileDiscovery
discovery = FileDiscovery(Path(sys.argv[1]))
discovery.register("ps", 7, "10.0.0.7:7")
print("registered", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def discovery(tmp_path):
    discovery = FileDiscovery(tmp_path)
    yield discovery
    discovery.close()


def test_an_entry_is_a_file_with_the_address_and_nothing_else_is_left(discovery, tmp_path):
    discovery.register("ps", 0, ADDRESS)
    assert (tmp_path / "ps" / "0").read_text() == ADDRESS
    assert [path.name for path in (tmp_path / "ps").iterdir()] == ["0"]


def test_the_entry_of_a_killed_process_is_removed_by_who_looks(discovery, tmp_path):
    command = [sys.executable, "-c", _REGISTER_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"registered\n"
        assert discovery.query("ps") == {7: "10.0.0.7:7"}
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    wait_until(lambda: discovery.query("ps") == {})
    assert not (tmp_path / "ps" / "7").exists()


def test_garbage_is_left_out_and_logged_once(discovery, tmp_path, caplog):
    discovery.register("ps", 0, ADDRESS)
    held = []
    for name, content in {
        "1": b"\xff\x00garbage",
        "2": b"",
        "3": b"x" * 10_000,
        "readme": b"h:1",
    }.items():
        (tmp_path / "ps" / name).write_bytes(content)
        held.append(lock(tmp_path / "ps" / name))  # as if its writer lived
    (tmp_path / "ps" / "4").mkdir()
    for _ in range(3):
        assert discovery.query_all() == {"ps": {0: ADDRESS}}
    assert sum("ignored an entry" in record.message for record in caplog.records) == 3
    for file in held:
        file.close()


def lock(path):
    file = open(path, "rb")  # noqa: SIM115  # the lock is held until the test closes it
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_a_directory_that_cannot_be_used_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").touch()
    discovery = FileDiscovery(tmp_path / "file")
    with pytest.raises(DiscoveryFailed, match="file/ps"):
        discovery.register("ps", 0, ADDRESS)
    assert discovery.query_all() == {}
