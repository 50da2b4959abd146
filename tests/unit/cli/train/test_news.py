"""The lines that `up` and `train` print while a job runs."""

import dataclasses
import io
import time

import pytest
from rich.console import Console

from megalith.cli.train.news import News
from megalith.control import (
    BarrierHolder,
    BarrierStatus,
    LastSave,
    LossReport,
    MemberStatus,
    RestoreReport,
)
from support.training_status import TRAINING

PS = MemberStatus("ps", 0, "h:1", "h:2", True, 0.0, "alive", is_ready=True)
STATUS = dataclasses.replace(TRAINING, model_dir="/a b", members=(PS,))
FAILED = LastSave(1.0, 0.1, 40, "", "no space left on device")
SAVED = LastSave(2.0, 0.1, 40, "/m/model.ckpt-40", "")


@pytest.fixture
def tell():
    console = Console(width=500, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  # closed below
    news = News(console, "/a b")

    def lines(*statuses):
        for status in statuses:
            news.tell(status)
        return console.export_text(clear=True).splitlines()

    lines.news = news
    yield lines
    console.file.close()


def test_what_was_restored_is_said_once_and_again_for_a_ps_that_is_replaced(tell):
    part = RestoreReport("/m/model.ckpt-7", 7, 6_500, 3, 0, 1.24, filters_reset=1)
    other = dataclasses.replace(part, rows=6_520, expired=0, left_out=11, seconds=0.5)
    members = (
        dataclasses.replace(PS, restored=part),
        dataclasses.replace(PS, index=1, restored=other),
    )
    status = dataclasses.replace(STATUS, members=members)
    assert tell(dataclasses.replace(status, phase="forming")) == []
    assert tell(status, status) == [
        "restored /m/model.ckpt-7: step 7, 13,020 rows on 2 ps in 1.2 s; 3 rows had expired; "
        "11 rows of other tables were left out; 2 admission filters were saved while their settings "
        "changed: ids without a row are counted anew there"
    ]
    empty = dataclasses.replace(PS, index=1, restored=RestoreReport("", 0, 0, 0, 0, 0.0))
    assert tell(dataclasses.replace(status, members=(members[0], empty))) == [
        "nothing was restored on 1 ps: there is no checkpoint"
    ]


def test_each_loss_is_said_once_also_over_a_restart_of_the_controller(tell):
    first, second = LossReport(1.0, 5, "ps-0 [all]"), LossReport(2.0, 0, "worker-1")
    with_one = dataclasses.replace(STATUS, losses=(first,))
    assert tell(with_one, STATUS, with_one) == ["lost: ps-0 [all]"]
    assert tell(dataclasses.replace(STATUS, losses=(first, second))) == ["lost: worker-1"]


def test_a_hook_that_raises_while_training_goes_on_is_said_once_for_each_worker(tell):
    raised = "Clumsy.before_step raised RuntimeError: the hook is clumsy"
    also = "Clumsy.end raised KeyError: 1"

    def status(*failures_by_worker):
        workers = [
            dataclasses.replace(PS, role="worker", index=index, hook_failures=failures)
            for index, failures in enumerate(failures_by_worker)
        ]
        return dataclasses.replace(STATUS, members=(PS, *workers))

    first = f"worker-0: the hook {raised}; training goes on"
    second = f"worker-1: the hook {raised}; training goes on"
    assert tell(status((), ())) == []
    assert tell(status((raised,), ())) == [first]
    assert tell(status((raised,), (raised,)), status((raised,), (raised,))) == [second]
    assert tell(status((raised, also), (raised,))) == [
        f"worker-0: the hook {also}; training goes on"
    ]


def test_a_journal_that_cannot_be_written_is_said_once_and_so_is_that_it_is_written_again(tell):
    failing = dataclasses.replace(
        STATUS, journal_error="/m/controller_state.json: No space left on device"
    )
    assert tell(failing, failing, STATUS, STATUS) == [
        "the journal cannot be written (/m/controller_state.json: No space left on device); if the controller dies "
        "now, the next one forgets a stop of training",
        "the journal is written again",
    ]


def test_failing_increments_are_said_once_with_their_reason_and_so_is_that_they_work_again(tell):
    at_s = time.mktime((2026, 11, 18, 20, 15, 30, 0, 0, -1))
    failing = dataclasses.replace(
        STATUS, increment_error="ps-1: no space left", increments_fail_since_s=at_s
    )
    other = dataclasses.replace(failing, increment_error="ps-0: no space left")
    assert tell(failing, failing, other, STATUS, STATUS) == [
        "increments fail since 20:15:30: ps-1: no space left; a ps that dies now loses what it "
        "learned since the last save or increment",
        "increments work again",
    ]


def test_a_file_that_ends_training_is_named_and_nobody_is_told_to_resume(tell):
    by_file = BarrierStatus(
        0, True, "Stop", "", holders=(BarrierHolder("action", "stop_300", "Stop", 0),)
    )
    assert tell(dataclasses.replace(STATUS, barrier=by_file), STATUS) == [
        "training is ended by the file stop_300 in the model directory (action Stop)"
    ]


def test_a_failing_save_is_said_once_and_so_is_that_saves_work_again(tell):
    failing = dataclasses.replace(STATUS, last_save=FAILED, last_checkpoint="/m/model.ckpt-7")
    again = dataclasses.replace(failing, last_save=dataclasses.replace(FAILED, ended_at_s=9.0))
    assert tell(failing, again) == [
        "a save failed: no space left on device; /m/model.ckpt-7 stands; training goes on"
    ]
    saved = dataclasses.replace(STATUS, last_save=SAVED)
    assert tell(saved, saved) == ["saves work again: /m/model.ckpt-40"]


LOST = MemberStatus("worker", 0, "h:3", "h:4", False, 9.0, "suspect")
DONE = MemberStatus("worker", 1, "h:5", "h:6", True, 0.1, "alive", is_finished=True)


@pytest.mark.parametrize(
    "change",
    [{"phase": "recovering"}, {"is_stopped": True}, {"members": (PS, LOST, DONE)}],
    ids=["recovering", "stopped", "no worker that trains"],
)
def test_a_failing_save_does_not_claim_that_training_goes_on_where_it_does_not(tell, change):
    assert tell(dataclasses.replace(STATUS, last_save=FAILED, **change)) == [
        "a save failed: no space left on device"
    ]


def test_a_last_save_that_fails_is_said_with_the_way_out(tell):
    ending = dataclasses.replace(STATUS, ending="all workers finished")
    assert tell(ending, ending) == ["the job ends (all workers finished); saving what was trained"]
    assert tell(dataclasses.replace(ending, last_save=FAILED)) == [
        "the last save failed: no space left on device; it is tried again, and the parameter servers "
        "stay up meanwhile; to end the job without saving: megalith ctl --model-dir '/a b' app kill"
    ]


def test_the_farewell_says_what_is_not_saved(tell):
    assert tell.news.farewell() == ""
    tell(STATUS)
    assert tell.news.farewell() == "not saved: there is no checkpoint"
    tell(
        dataclasses.replace(
            STATUS, unsaved="steps 7..40 since /m/model.ckpt-7", last_checkpoint="/m/model.ckpt-7"
        )
    )
    assert tell.news.farewell() == "not saved: steps 7..40 since /m/model.ckpt-7"
    tell(dataclasses.replace(STATUS, last_checkpoint="/m/model.ckpt-40"))
    assert tell.news.farewell() == "saved: /m/model.ckpt-40"


def test_a_checkpoint_that_the_job_failed_to_start_from_is_not_called_saved(tell):
    tell(dataclasses.replace(STATUS, phase="forming", last_checkpoint="/m/model.ckpt-40"))
    assert tell.news.farewell() == "the newest checkpoint is /m/model.ckpt-40"


def test_who_holds_training_is_said_with_the_way_out_and_that_it_goes_on(tell):
    def held(*holders):
        barrier = BarrierStatus(1, True, "", "", tuple(holders))
        return dataclasses.replace(STATUS, is_stopped=True, barrier=barrier)

    stop = BarrierHolder("operator", "look at data", "", 1)
    memory = BarrierHolder("health", "ps-1: Memory limit exceeded. Current: 9, Limit: 8", "", 2)
    save = BarrierHolder("save", "save", "Save", 3)
    resume = "to let it go on: megalith ctl --model-dir '/a b' resume"
    assert tell(held(save), STATUS) == []
    assert tell(held(stop), held(stop, memory), held(memory), held(memory, save), STATUS) == [
        f"training is stopped by an operator: look at data; {resume}",
        "training is held because of ps-1: Memory limit exceeded. Current: 9, Limit: 8; " + resume,
        "training goes on",
    ]


def test_a_choice_of_a_checkpoint_that_was_obeyed_before_is_said_at_the_start_only():
    with Console(width=500, record=True, file=io.StringIO()) as console:
        news = News(console, "/a b", restore_ckpt="model.ckpt-7")
        part = RestoreReport("/a b/model.ckpt-9", 9, 10, 0, 0, 0.1)
        news.tell(dataclasses.replace(STATUS, members=(dataclasses.replace(PS, restored=part),)))
        later = dataclasses.replace(part, path="/a b/model.ckpt-12")
        news.tell(dataclasses.replace(STATUS, members=(dataclasses.replace(PS, restored=later),)))

    said = [line for line in console.export_text().splitlines() if "--restore-ckpt" in line]
    assert said == [
        "--restore-ckpt model.ckpt-7 was obeyed by an earlier start, so the job goes on from "
        "model.ckpt-9; to go back once more: rm '/a b/restore_ckpt'"
    ]


def test_a_choice_of_a_checkpoint_that_is_obeyed_now_needs_no_word():
    with Console(width=500, record=True, file=io.StringIO()) as console:
        news = News(console, "/a b", restore_ckpt="model.ckpt-7")
        part = RestoreReport("/a b/model.ckpt-7", 7, 10, 0, 0, 0.1)
        news.tell(dataclasses.replace(STATUS, members=(dataclasses.replace(PS, restored=part),)))

    assert "--restore-ckpt" not in console.export_text()
