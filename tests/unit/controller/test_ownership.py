"""Who serves a model directory, also where file locks do not reach."""

import errno
import fcntl
import logging
import stat

import pytest

from megalith.controller.coordinator import Coordinator
from megalith.controller.members import job_files
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.members.roster import Patience
from megalith.controller.ownership import ModelDirOwnership, check_free
from megalith.errors import InvalidSetting, ModelDirInUse, NotReady


def without_locks(monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture
def own(tmp_path):
    """Claims the directory; everything claimed is released in the end."""
    owners = []

    def claim():
        owners.append(ModelDirOwnership(tmp_path, "job"))
        return owners[-1]

    yield claim
    for owner in owners:
        owner.release()


def test_a_second_controller_is_refused_while_the_lock_reaches_it(own):
    first = own()
    with pytest.raises(ModelDirInUse):
        own()
    assert not first.is_replaced  # one that was refused replaces nobody


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_without_locks_it_starts_with_a_warning_and_the_older_controller_learns_of_the_newer(
    own, monkeypatch, caplog, number
):
    without_locks(monkeypatch, number)
    with caplog.at_level(logging.WARNING):
        first = own()
    assert "has no file locks" in caplog.text
    first.check()
    second = own()
    assert second.generation > first.generation
    assert (first.is_replaced, second.is_replaced) == (True, False)
    with pytest.raises(NotReady, match="a newer controller serves"):
        first.check()
    second.check()


def test_any_number_of_controllers_later_the_first_still_learns_of_it(own, tmp_path, monkeypatch):
    without_locks(monkeypatch, errno.ENOLCK)
    owners = [own() for _ in range(12)]
    assert [owner.is_replaced for owner in owners] == [True] * 11 + [False]
    assert len(list((tmp_path / "controller.generation").iterdir())) == 1


def test_a_controller_that_did_not_start_replaces_nobody(own, monkeypatch):
    without_locks(monkeypatch, errno.ENOLCK)
    first = own()
    own().withdraw()
    assert not first.is_replaced


def test_a_look_whether_the_directory_is_free_claims_nothing_and_replaces_nobody(
    own, tmp_path, monkeypatch
):
    check_free(tmp_path, "job")
    assert not (tmp_path / "controller.generation").exists()
    first = own()
    with pytest.raises(ModelDirInUse):
        check_free(tmp_path, "job")
    without_locks(monkeypatch, errno.ENOLCK)
    check_free(tmp_path, "job")
    assert not first.is_replaced


def test_the_number_of_a_controller_that_did_not_start_is_not_given_to_another(own):
    for _ in range(3):
        own().release()
    fourth = own()
    assert fourth.generation == 4
    fourth.release()  # as the kernel does for one that is killed
    own().withdraw()
    assert own().generation == 6  # members that have known the fourth obey it


def test_after_one_that_did_not_start_the_next_one_still_replaces_the_first(own, monkeypatch):
    without_locks(monkeypatch, errno.ENOLCK)
    first = own()
    own().withdraw()
    third = own()
    assert (first.is_replaced, third.is_replaced) == (True, False)


def test_a_disk_without_room_for_the_text_of_a_claim_stops_no_controller(own, monkeypatch):
    own().release()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("megalith.controller.ownership.socket.gethostname", full)
    assert own().generation == 2


def test_a_lock_file_that_is_a_link_is_refused_and_its_target_stays_whole(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    (tmp_path / "controller.lock").symlink_to(precious)
    with pytest.raises(InvalidSetting, match="not a plain file"):
        ModelDirOwnership(tmp_path, "job")
    assert precious.read_text() == "years of work"


@pytest.fixture
def taken():
    cluster = Coordinator(1, 0, patience=Patience(silence_s=1, suspect_s=1, lost_worker_s=1))
    return cluster.journal()


def test_a_replaced_controller_neither_writes_nor_removes_the_journal(tmp_path, taken):
    (tmp_path / job_files.JOURNAL).write_text("of the newer one")
    keeper = JournalKeeper(tmp_path, lambda: taken, may_write=lambda: False)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=True)
    assert (tmp_path / job_files.JOURNAL).read_text() == "of the newer one"


def test_only_its_user_may_read_the_journal(tmp_path, taken):
    keeper = JournalKeeper(tmp_path, lambda: taken)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=False)
    assert stat.S_IMODE((tmp_path / job_files.JOURNAL).stat().st_mode) == 0o600


def test_a_run_that_ended_is_remembered(tmp_path):
    assert job_files.ended_runs(tmp_path) == ()
    job_files.record_ended_run(tmp_path, "abc")
    assert job_files.ended_runs(tmp_path) == ("abc",)


def test_runs_before_the_last_one_are_remembered_too_and_not_without_end(tmp_path):
    for number in range(3):
        job_files.record_ended_run(tmp_path, f"run-{number}")
    assert job_files.ended_runs(tmp_path) == ("run-0", "run-1", "run-2")
    (tmp_path / "controller_ended_run.txt").write_text(
        "\n".join(f"old-{number}" for number in range(1000))
    )
    job_files.record_ended_run(tmp_path, "new")
    assert len(job_files.ended_runs(tmp_path)) == 1000
    assert job_files.ended_runs(tmp_path)[0] == "old-1"
    assert job_files.ended_runs(tmp_path)[-1] == "new"
