"""The status as a person reads it, and as a script does."""

import dataclasses
import json
import re
import time

import pytest
from rich.console import Console

from megalith.cli.ctl.watching import show_again_and_again
from megalith.cli.screen.output import print_status
from megalith.control import (
    BarrierHolder,
    BarrierStatus,
    ClusterStatus,
    LastSave,
    LossReport,
    MemberStatus,
    PsCandidate,
    ReplicaReport,
    ReplicaStatus,
    SaveProgress,
    TableFreshness,
)
from megalith.errors import PeerUnreachable
from megalith.wire.pieces import PieceCounts

STATUS = ClusterStatus(
    address="127.0.0.1:7600",
    model_dir="/models/[a]",
    phase="running",
    epoch=3,
    is_stopped=True,
    global_step=1234,
    last_checkpoint="/models/[a]/model.ckpt-1200",
    outcome="",
    reason="",
    results={},
    members=(
        MemberStatus(
            "ps",
            0,
            "h:1",
            "h:2",
            True,
            0.4,
            "alive",
            rows=12345,
            bytes=2_500_000,
            is_ready=True,
            buckets=512,
            requests_per_s=321.4,
            p99_s=0.0123,
            resident_bytes=2_000_000_000,
            memory_limit_bytes=4_000_000_000,
        ),
        MemberStatus(
            "ps",
            1,
            "h:3",
            "h:4",
            False,
            7.0,
            "suspect",
            is_ready=True,
            buckets=512,
            complaint="Memory [limit]",
        ),
        MemberStatus(
            "worker",
            0,
            "h:5",
            "h:6",
            True,
            0.1,
            "alive",
            global_step=1234,
            is_blocked=True,
            total_batches=5000,
        ),
        MemberStatus("worker", 1, "h:7", "h:8", False, 99.0, "dead"),
        MemberStatus("worker", 2, "", "", False, 0.0, "expected"),
    ),
    job="/models/[a]",
    up_s=61.0,
    barrier=BarrierStatus(
        7,
        True,
        "",
        "look at [data]",
        (
            BarrierHolder("operator", "look at [data]", "", 5),
            BarrierHolder("save", "save", "Save", 6),
            BarrierHolder("health", "ps-1: Memory limit exceeded. Current: 9, Limit: 8", "", 7),
        ),
    ),
    last_save=LastSave(0.0, 1.25, 1200, "/models/[a]/model.ckpt-1200", ""),
    next_save_s=42.0,
    next_save_step=None,
)


def shown(status):
    console = Console(width=40, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  # closed with the test
    print_status(status, console)
    console.file.close()
    return console.export_text()


def test_every_figure_of_the_issue_is_there():
    text = shown(STATUS)
    lines = [line.strip() for line in text.splitlines()]
    assert (
        "running, stopped by an operator: look at [data], held by a save (action Save), "
        "held because of ps-1: Memory limit exceeded. Current: 9, Limit: 8, step 1234, epoch 3"
    ) in text
    assert "step 1200" in text
    assert "took 1.2 s" in text
    assert "next save  in 42.0 s" in text
    assert "ps-1: Memory [limit]" in text
    (ps0,) = [line for line in lines if line.startswith("ps-0")]
    assert (
        " ".join(ps0.split())
        == "ps-0 h:1 ready 12,345 2.5 MB 2.00 GB/4.00 GB 512 321 12.3 ms 0.4 s ago"
    )
    states = {line.split()[0]: line.split()[2] for line in lines if line.startswith("worker-")}
    assert states["worker-0"] == "blocked"
    assert "dead" in text
    assert "expected" in text
    assert "suspect" in text
    assert "…" not in text  # a figure that is cut is a wrong one


def test_a_save_into_another_directory_is_not_taken_for_the_checkpoint_of_the_job():
    """Both have a name and rows; the line of one had the rows of the other."""
    elsewhere = LastSave(0.0, 1.25, 1200, "/else[where]/model.ckpt-1200", "", rows=7)
    lines = shown(dataclasses.replace(STATUS, last_save=elsewhere)).splitlines()
    assert "checkpoint /models/[a]/model.ckpt-1200" in lines
    (line,) = [line for line in lines if line.startswith("last save")]
    assert line.startswith("last save  /else[where]/model.ckpt-1200, step 1200, ")


def test_a_save_into_the_directory_of_the_job_is_named_once():
    text = shown(STATUS)
    assert text.count("/models/[a]/model.ckpt-1200") == 1


def test_saves_that_are_not_there_are_said_so():
    text = shown(dataclasses.replace(STATUS, last_save=None, next_save_s=None))
    assert "none by this controller" in text
    assert "when asked for, and at the end" in text
    failed = dataclasses.replace(
        STATUS, last_save=LastSave(0.0, 1.0, 7, "", "disk full"), next_save_step=90
    )
    assert "failed" in shown(failed)
    assert "disk full" in shown(failed)
    assert "at step 90" in shown(dataclasses.replace(failed, next_save_s=None))


def test_a_planned_save_that_waits_is_said_with_what_it_waits_for():
    waiting = dataclasses.replace(
        STATUS, next_save_s=1.5, planned_saves_wait="there is no /m/ONLINE"
    )
    assert "next save  waits: there is no /m/ONLINE" in shown(waiting)


def test_a_watch_outlives_the_controller_and_ends_with_the_job(capsys):
    answers = [
        STATUS,
        PeerUnreachable("nobody there"),
        dataclasses.replace(STATUS, outcome="succeeded"),
    ]
    slept = []

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    show_again_and_again(ask, 0.5, as_json=True, sleep=slept.append)
    out, err = capsys.readouterr()
    assert [json.loads(line)["outcome"] for line in out.splitlines()] == ["", "succeeded"]
    assert err == "megalith ctl status: nobody there\n"
    assert slept == [0.5, 0.5]


def test_a_watch_without_a_terminal_repeats_the_status(capsys):
    answers = [STATUS, dataclasses.replace(STATUS, outcome="failed", reason="killed")]
    show_again_and_again(lambda: answers.pop(0), 0.5, as_json=False, sleep=lambda seconds: None)
    out = capsys.readouterr().out
    assert out.count("epoch 3") == 2
    assert "outcome    failed: killed" in out


def test_ctrl_c_ends_a_watch(capsys):
    def interrupt(seconds):
        raise KeyboardInterrupt

    show_again_and_again(lambda: STATUS, 0.5, as_json=True, sleep=interrupt)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_watch_ends_when_the_controller_stays_away_and_says_how_the_job_was_last_seen(capsys):
    now = [0.0]
    answers = [dataclasses.replace(STATUS, unsaved="steps 1200..1234 since /m/model.ckpt-1200")]

    def ask():
        if answers:
            return answers.pop()
        raise PeerUnreachable("nobody there")

    def sleep(seconds):
        now[0] += seconds

    seen = "last seen running at step 1234; not saved: steps 1200..1234 since /m/model.ckpt-1200"
    with pytest.raises(PeerUnreachable, match=seen):
        show_again_and_again(ask, 1.0, as_json=True, sleep=sleep, clock=lambda: now[0])
    assert now[0] == 30.0
    assert capsys.readouterr().err.count("nobody there") == 29


def test_a_journal_that_cannot_be_written_is_in_the_status():
    text = shown(dataclasses.replace(STATUS, journal_error="/m/j: No space left on device"))
    assert (
        "journal    cannot be written (/m/j: No space left on device); if the controller dies now"
        in text
    )
    assert "journal" not in shown(STATUS)


def test_increments_that_fail_are_in_the_status():
    failing = dataclasses.replace(
        STATUS, increment_error="ps-1: no [space]", increments_fail_since_s=time.time()
    )
    assert re.search(r"increments fail since \d\d:\d\d:\d\d: ps-1: no \[space\]; ", shown(failing))
    assert "increments" not in shown(STATUS)


def test_what_is_lost_and_not_saved_is_in_the_status():
    losses = (
        LossReport(0.0, 135_280, "ps-1 was replaced by an empty one"),
        LossReport(1.0, 0, "worker-2 was lost [for good]"),
    )
    text = shown(
        dataclasses.replace(
            STATUS, losses=losses, rows_lost=135_280, unsaved="steps 1..2", ending="done"
        )
    )
    for line in (
        "lost       135,280 rows",
        "lost       ps-1 was replaced by an empty one",
        "lost       worker-2 was lost [for good]",
        "not saved  steps 1..2",
        "ending     done; saving what was trained",
    ):
        assert line in text


def test_while_a_save_is_under_way_it_is_said_that_increments_wait_for_it():
    """A ps that dies then goes back to the last increment, which may be many minutes old."""
    saving = dataclasses.replace(STATUS, saving=SaveProgress(1300, 754.0, 5_000_000, 1_000))
    line = "saving     step 1300, 5.0 MB written of about 1,000 rows, for 754.0 s"
    assert f"{line}; no increment before it ends" in shown(
        dataclasses.replace(saving, unsaved="steps 1200..1300 since increment 3 of m/model.ckpt-9")
    )
    assert "no increment" not in shown(saving)


def replica_of(index, *tables):
    report = ReplicaReport(index, f"h:{index}", is_ready=True, tables=tables)
    return ReplicaStatus(report, 0.1)


def test_status_has_the_slowest_tables_as_their_slowest_replica_has_them():
    tables = [TableFreshness(f"table {n}", n / 10, n / 5, n * 1e4, n * 1e4) for n in range(1, 12)]
    other = replica_of(1, dataclasses.replace(tables[-1], p50_s=4.0, p99_s=5.0))
    status = dataclasses.replace(STATUS, replicas=(replica_of(0, *tables), other))
    lines = [" ".join(line.split()) for line in shown(status).splitlines()]
    begin = lines.index("table fresh p50 fresh p99 event p50 event p99")
    assert "table 11 4.00 s 5.00 s 31 h 31 h" in lines[begin:]
    assert "table 4 0.40 s 0.80 s 11 h 11 h" in lines[begin:]
    assert not any(line.startswith("table 3") for line in lines)
    assert "3 faster ones - - - -" in lines[begin:]


def test_status_has_no_times_of_data_that_has_none():
    status = dataclasses.replace(STATUS, replicas=(replica_of(0, TableFreshness("t", 0.1, 0.2)),))
    assert "t 0.10 s 0.20 s - -" in " ".join(shown(status).split())


def on_a_terminal(width, status):
    console = Console(
        width=width,
        record=True,
        force_terminal=True,
        file=open("/dev/null", "w"),  # noqa: SIM115
    )
    print_status(status, console)
    console.file.close()
    return console.export_text().splitlines()


BUSY = dataclasses.replace(
    STATUS,
    members=tuple(
        dataclasses.replace(
            member,
            address="127.0.0.1:40497",
            rows=123_456_789,
            bytes=25_300_000_000,
            position=1_234_567,
            total_batches=9_876_543,
            examples_per_s=345_678.0,
        )
        for member in STATUS.members
    ),
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("status", [STATUS, BUSY], ids=["quiet", "busy"])
def test_the_status_fits_the_terminal_and_no_figure_is_cut(width, status):
    lines = on_a_terminal(width, status)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for title in ("process", "state", "rows", "req/s", "batches", "examples/s", "loss"):
        assert title in text
    processes = [line.split()[0] for line in lines if line.startswith((" ps-", " worker-"))]
    assert processes == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]


def test_columns_without_room_are_named():
    narrow = "\n".join(on_a_terminal(80, BUSY))
    assert "a wider terminal also shows: address" in narrow
    assert "127.0.0.1:40497" not in narrow
    assert "a wider terminal" not in "\n".join(on_a_terminal(140, BUSY))


def test_a_worker_that_is_dead_or_done_has_no_rate():
    alive, dead = (
        MemberStatus("worker", 0, "h:5", "h:6", True, 0.1, standing, examples_per_s=189_655.0)
        for standing in ("alive", "dead")
    )
    done = dataclasses.replace(alive, is_finished=True)
    assert "189,655" in shown(dataclasses.replace(STATUS, members=(alive,)))
    for member in (dead, done):
        assert "189,655" not in shown(dataclasses.replace(STATUS, members=(member,)))


def test_a_ps_that_took_a_shard_over_is_called_by_its_own_name():
    candidates = (
        PsCandidate(0, "h:1", False, None, 0.0),
        PsCandidate(1, "h:3", True, 1, 0.0),
        PsCandidate(2, "h:9", True, 0, 0.0),
    )
    lines = shown(dataclasses.replace(STATUS, candidates=candidates)).splitlines()
    first, second = (line.split()[0] for line in lines if " ready " in line or "suspect" in line)
    assert (first, second) == ("ps-2", "ps-1")


def test_what_workers_left_out_is_in_the_status():
    worker = MemberStatus(
        "worker", 0, "h:1", "h:2", True, 0.1, "alive", skipped_messages=1200, late_files=1
    )
    text = shown(dataclasses.replace(STATUS, members=(worker,)))
    assert "left out   1,200 messages, 1 file; the logs of the workers name them" in text


@pytest.mark.parametrize(
    ("counts", "pieces", "words"),
    [
        ((1, 1), None, "2 parts of files"),
        ((2, 0), None, "2 files"),
        ((1, 1), PieceCounts(0, 5, 0, 0, True), "2 files"),
    ],
)
def test_a_file_that_several_workers_left_out_in_part_is_not_said_to_be_several_files(
    counts, pieces, words
):
    workers = [
        MemberStatus("worker", index, "h:1", "h:2", True, 0.1, "alive", late_files=count)
        for index, count in enumerate(counts)
    ]
    text = shown(dataclasses.replace(STATUS, members=tuple(workers), pieces=pieces))
    assert f"left out   {words};" in text


def test_hooks_that_raised_are_counted_and_named_in_the_status():
    failures = ("Clumsy.before_step raised RuntimeError: [red]",)
    worker = MemberStatus(
        "worker",
        1,
        "h:1",
        "h:2",
        True,
        0.1,
        "alive",
        hook_errors=1200,
        hook_failures=failures,
    )
    text = shown(dataclasses.replace(STATUS, members=(worker,)))
    assert "hooks      1,200 calls raised; training goes on" in text
    assert "           worker-1: the hook Clumsy.before_step raised RuntimeError: [red]" in text


def test_a_status_says_how_many_pieces_are_done_held_and_left():
    counts = PieceCounts(total=300, done=120, held=4, returned=3, is_followed=False)
    text = shown(dataclasses.replace(STATUS, pieces=counts))
    assert "pieces     120 done, 4 held, 176 left; 3 taken back from lost workers" in text
    endless = PieceCounts(total=0, done=7, held=1, returned=0, is_followed=False)
    assert "pieces     7 done, 1 held\n" in shown(dataclasses.replace(STATUS, pieces=endless))
