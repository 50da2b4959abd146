import pytest

from megalith.controller.members.losses import Losses
from megalith.controller.saving.schedule import Unsaved
from megalith.wire.reports import PsReport, RestoreReport

HELD = PsReport(is_ready=True, rows=140_000, pushes=9)


@pytest.fixture
def losses():
    return Losses(clock=lambda: 1000.0)


def test_a_ps_that_comes_back_empty_has_lost_all_its_rows(losses):
    losses.ps_gone(1, HELD, step=50)
    losses.ps_ready(1, RestoreReport(), counts_steps=True)
    losses.ps_ready(1, RestoreReport(), counts_steps=True)  # it reports every second
    assert losses.rows == 140_000
    (loss,) = losses.said
    assert loss.what == (
        "ps-1 was replaced and starts empty, there is no checkpoint. Lost: 140,000 rows, all updates. Its last report, "
        "before it was lost, was of 140,000 rows at step 50; what it got after that is lost too, and not counted"
    )


@pytest.mark.parametrize(
    ("restored", "lost"),
    [
        (RestoreReport(), "2 tables, 3 variables, all updates."),
        (
            RestoreReport("/m/model.ckpt-0", tables=1, variables=2),
            "1 table, 1 variable, all updates since.",
        ),
    ],
    ids=["empty", "checkpoint"],
)
def test_variables_and_tables_that_a_replacement_does_not_have_are_lost(losses, restored, lost):
    held = PsReport(is_ready=True, pushes=5, restored=RestoreReport(), tables=2, variables=3)
    losses.ps_gone(0, held, step=0, silent_s=7.4)
    losses.ps_ready(0, restored, counts_steps=False)
    assert (
        f"Lost: {lost} Its last report, 7 s before it was replaced, was of 0 rows"
        in losses.said[0].what
    )


def test_variables_that_nobody_has_pushed_to_are_lost_too(losses):
    losses.ps_gone(0, PsReport(is_ready=True, variables=1), step=0)
    losses.ps_ready(0, RestoreReport("/m/model.ckpt-0"), counts_steps=False)
    assert "Lost: 1 variable. " in losses.said[0].what


def test_from_an_older_checkpoint_the_rows_and_updates_since_are_lost(losses):
    losses.saved("/m/model.ckpt-40", 965.0)
    losses.ps_gone(1, HELD, step=50)
    losses.ps_ready(
        1,
        RestoreReport("/m/model.ckpt-40", 40, rows=120_000, expired=900, left_out=100),
        counts_steps=True,
    )
    assert losses.rows == 20_000
    assert losses.said[0].what == (
        "ps-1 was replaced and starts from checkpoint /m/model.ckpt-40 (step 40, saved 35 s ago). "
        "Lost: 20,000 rows (up to 900 of them had expired), all updates since. "
        "Its last report, before it was lost, was of 140,000 rows at step 50; what it got after that is lost too, and not counted"
    )


@pytest.mark.parametrize(("step", "counts_steps", "pushes", "is_lost"), [
    (50, True, 9, False), (51, True, 9, True), (50, False, 0, False), (50, False, 1, True),
])  # fmt: skip
def test_updates_are_lost_when_something_was_done_since_the_checkpoint(
    losses, step, counts_steps, pushes, is_lost
):
    losses.ps_gone(0, PsReport(is_ready=True, rows=7, pushes=pushes), step)
    losses.ps_ready(0, RestoreReport("/m/model.ckpt-50", 50, rows=7), counts_steps=counts_steps)
    assert losses.rows == 0
    assert bool(losses.said) is is_lost


def test_rows_that_the_lost_ps_had_dropped_already_do_not_make_the_loss_smaller(losses):
    losses.ps_gone(
        0, PsReport(is_ready=True, rows=1_100), step=50
    )  # 400 of 1,000 had expired, and 500 are new
    losses.ps_ready(
        0, RestoreReport("/m/model.ckpt-40", 40, rows=600, expired=400), counts_steps=True
    )
    assert losses.rows == 500


def test_what_the_first_ps_held_counts_also_when_its_replacement_dies_before_it_is_ready(losses):
    losses.ps_gone(0, HELD, step=50)
    losses.ps_gone(0, PsReport(), step=50)
    losses.ps_ready(0, RestoreReport(), counts_steps=True)
    assert losses.rows == 140_000


def test_a_controller_that_is_started_again_goes_on_counting(losses):
    losses.ps_gone(0, HELD, step=50)
    losses.ps_ready(0, RestoreReport(), counts_steps=True)
    again = Losses(clock=lambda: 2000.0)
    again.add(3, "later")
    again.recall(losses.rows, losses.said)
    assert again.rows == 140_003
    assert [loss.at_s for loss in again.said] == [1000.0, 2000.0]


class FakeCoordinator:
    def __init__(self, num_workers):
        self.num_workers = num_workers
        self.global_step = 0
        self.has_unsaved_pushes = False


def test_what_is_not_saved_is_told_by_steps():
    cluster = FakeCoordinator(num_workers=2)
    unsaved = Unsaved(cluster, "/m/model.ckpt-5", 5)
    cluster.global_step = 5
    assert unsaved.text() == ""
    cluster.global_step = 9
    assert unsaved.text() == "steps 5..9 since /m/model.ckpt-5"
    unsaved.saved("/m/model.ckpt-9", 9)
    assert (unsaved.text(), unsaved.path) == ("", "/m/model.ckpt-9")


def test_without_workers_it_is_told_by_pushes():
    cluster = FakeCoordinator(num_workers=0)
    unsaved = Unsaved(cluster, "", 0)
    assert unsaved.text() == ""
    cluster.has_unsaved_pushes = True
    assert unsaved.text() == "pushes of SDK clients of this job: there is no checkpoint"
    unsaved.saved("/m/model.ckpt-0", 0)
    assert unsaved.text() == "pushes of SDK clients since /m/model.ckpt-0"


def test_pushes_beside_the_workers_count_too():
    cluster = FakeCoordinator(num_workers=1)
    unsaved = Unsaved(cluster, "/m/model.ckpt-5", 5)
    cluster.global_step = 5
    cluster.has_unsaved_pushes = True
    assert unsaved.text() == "pushes since /m/model.ckpt-5"
