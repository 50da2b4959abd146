import errno
import os
import re

from megalith.runtime import disk


def test_a_full_disk_is_named_with_its_room(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = disk.why(full, tmp_path / "saving-12-ab")
    assert re.match(
        r"no space left on the disk at /\S*, \d+ of \d+ MB are free without the unfinished files; make room there \(.*28",
        said,
    )


def test_a_directory_that_may_not_be_written_is_named(tmp_path):
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "f")
    assert disk.why(refused, tmp_path).startswith(
        f"user {os.geteuid()} may not write into {tmp_path}"
    )


def test_other_errors_speak_for_themselves(tmp_path):
    assert disk.why(ValueError("bad rows"), tmp_path) == "bad rows"
    assert "File too large" in disk.why(OSError(errno.EFBIG, "File too large"), tmp_path)
