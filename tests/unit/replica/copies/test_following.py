"""What a replica says while a ps cannot be followed."""

import logging

from megalith.protos import replication_pb2 as pb
from megalith.replica.copies.following import Following, PsProcess


class Copy:
    """Fails in a way that nobody foresaw, as often as it is asked where it is."""

    index = 0

    def __init__(self, errors):
        self._errors = iter(errors)
        self.following = None

    @property
    def cursor(self):
        error = next(self._errors, None)
        if error is None:
            self.following.stop()
            error = RuntimeError("the last one")
        raise error


class Impatient(Following):
    """Does not wait between two tries."""

    def stop(self):
        self._stopping.set()

    def run(self):
        self._stopping.wait = lambda _: None
        self._run()


def test_a_lasting_error_is_logged_once_and_another_one_again(caplog):
    first = [RuntimeError("first") for _ in range(5)]
    second = [RuntimeError("second") for _ in range(5)]
    copy = Copy(first + second)
    process = PsProcess("run", "127.0.0.1:1", "a")
    copy.following = Impatient(copy, process, pb.FollowBegin(), 1 << 20, lambda: False)
    with caplog.at_level(logging.ERROR):
        copy.following.run()

    logged = [record.exc_info[1].args[0] for record in caplog.records if record.exc_info]
    assert logged == ["first", "second", "the last one"]
