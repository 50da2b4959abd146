import pytest

from megalith.worker.session.progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_steps_are_counted_and_the_rate_is_recent():
    clock = Clock()
    progress = Progress(clock)
    progress.set(position=5, total_batches=20)
    for step in range(1, 11):
        clock.now = float(step)
        progress.step_done(global_step=100 + step, num_examples=50, loss=float(step))
    now = progress.snapshot()
    assert (now.position, now.examples, now.global_step, now.loss) == (15, 500, 110, 5.5)
    assert now.examples_per_s == 60.0  # six steps of 50 in the last five seconds
    clock.now = 100.0
    assert progress.snapshot().examples_per_s == 0.0


def test_steps_of_a_rate_that_nobody_asks_for_are_forgotten():
    clock = Clock()
    progress = Progress(clock)
    for step in range(1, 1001):
        clock.now = float(step)
        progress.step_done(step, 50, 0.5)

    assert len(progress._recent) == 6
    assert progress.snapshot().examples_per_s == 60.0


def test_examples_of_a_batch_that_was_left_out_are_not_trained():
    progress = Progress(Clock())
    progress.step_done(1, 50, 0.5, missing_values=3)
    progress.step_done(2, 50, None)
    progress.step_done(3, 0, 0.5, missing_values=4)
    now = progress.snapshot()
    assert now.missing_values == 7
    assert (now.position, now.examples, now.skipped_batches) == (3, 50, 1)


def test_a_blocked_worker_has_no_rate():
    clock = Clock()
    progress = Progress(clock)
    progress.step_done(1, 10, 0.5)
    clock.now = 1.0
    assert progress.snapshot().examples_per_s == 10.0
    progress.set(is_blocked=True)
    assert progress.snapshot().examples_per_s == 0.0


def test_the_step_never_goes_back():
    progress = Progress()
    progress.step_done(9, 1, 0.0)
    progress.step_done(8, 1, 0.0)
    assert progress.snapshot().global_step == 9


def test_metrics_are_means_over_the_steps_that_have_them():
    progress = Progress()
    progress.step_done(1, 1, 0.5, {"auc": 0.6})
    progress.step_done(2, 1, 0.5, {"auc": float("nan")})
    progress.step_done(3, 1, 0.5)
    progress.step_done(4, 1, 0.5, {"auc": 0.8, "hits": 3.0})
    assert progress.snapshot().metrics == {"auc": pytest.approx(0.7), "hits": 3.0}
