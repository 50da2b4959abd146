"""Training in this process: what it learns, saves and goes on from, and what it refuses."""

import logging
import math
import re
import threading
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import megalith.client as mg
from megalith.checkpoint.directory import increments
from megalith.checkpoint.layout import manifest
from megalith.controller.ownership import ModelDirOwnership
from megalith.errors import (
    BadData,
    InvalidRequest,
    ModelDirInUse,
    NonFiniteValue,
    ShapeMismatch,
)
from megalith.local import local_train, untouched
from megalith.local.model import LocalModel
from megalith.local.run import MOST_LOSSES
from megalith.tasks.api import FeatureBatch, FeatureTask, StepOutput
from megalith.worker.hooks import Hook, current_worker
from support.liked_task import SLICES, LikedTask
from support.waiting import wait_until


def test_a_task_learns_and_is_evaluated():
    run = local_train(LikedTask(num_examples=256_000, batch_size=256))
    assert run.step == 1000
    assert run.examples == 256_000
    assert run.figures["auc"] > 0.75
    assert np.mean(run.losses[-50:]) < np.mean(run.losses[:50])
    assert run.model.num_rows == 400


def test_losses_of_a_stream_without_an_end_are_the_last_ones():
    run = local_train(LikedTask(num_examples=128))
    first, second = run.losses
    run.last_losses.extend(range(MOST_LOSSES - 1))  # as the loop adds one after each step
    assert len(run.losses) == MOST_LOSSES
    assert run.losses[:3] == [second, 0, 1]
    assert first not in run.losses
    assert run.losses[-1] == MOST_LOSSES - 2


@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_is_saved_goes_on_as_if_nothing_had_happened(tmp_path, num_threads):
    whole = local_train(LikedTask(), num_threads=num_threads)
    first = local_train(LikedTask(), model_dir=tmp_path, max_steps=40, num_threads=num_threads)
    assert first.checkpoint.name == "model.ckpt-40"
    rest = local_train(LikedTask(), model_dir=tmp_path, num_threads=num_threads)
    assert rest.step == whole.step == 100
    assert first.losses + rest.losses == whole.losses

    again = local_train(LikedTask(), start_from=first.checkpoint, num_threads=num_threads)
    assert again.losses == rest.losses
    done = local_train(LikedTask(), model_dir=tmp_path)
    assert done.losses == []
    assert done.figures == whole.figures


def saved_in(model_dir):
    return sorted(path.name for path in model_dir.glob("model.ckpt-*"))


def test_a_run_that_trains_nothing_saves_nothing_and_names_what_has_everything(tmp_path, caplog):
    first = local_train(LikedTask(), model_dir=tmp_path)
    assert not first.has_nothing_new
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            again = local_train(LikedTask(), model_dir=tmp_path)
            assert again.has_nothing_new
            assert again.checkpoint == first.checkpoint
            assert again.figures == first.figures

    assert f"nothing new since {first.checkpoint}, which has everything" in caplog.text
    assert saved_in(tmp_path) == ["model.ckpt-100"]


class OtherVariable(LikedTask):
    variables = (*LikedTask.variables, mg.VariableConfig("more", np.zeros(2, np.float32)))


class OtherRate(LikedTask):
    features = (
        mg.Feature("user", [replace(each, optimizer=mg.Adagrad(0.01)) for each in SLICES]),
        LikedTask.features[1],
    )


class OtherTable(LikedTask):
    features = (*LikedTask.features, mg.Feature("more", SLICES))
    layouts: ClassVar = {**LikedTask.layouts, "more": mg.Layout.stack("more.vec")}

    def batch(self, number):
        batch = super().batch(number)
        return replace(batch, ids={**batch.ids, "more": batch.ids["user"]})


@pytest.mark.parametrize(
    "task",
    [OtherVariable(), OtherRate(), OtherTable(), LikedTask(batch_size=128)],
    ids=["a variable", "a rate", "a table", "where its input is"],
)
def test_a_run_that_trains_nothing_saves_what_is_new_all_the_same(tmp_path, task):
    local_train(LikedTask(), model_dir=tmp_path)
    for _ in range(2):
        local_train(task, model_dir=tmp_path, evaluates=False)
        assert saved_in(tmp_path) == ["model.ckpt-100", "model.ckpt-r1-100"]


def test_a_run_that_goes_back_or_begins_elsewhere_saves_that(tmp_path):
    """Else the next run would begin with another checkpoint than this one."""
    first = local_train(LikedTask(), model_dir=tmp_path / "one", max_steps=40)
    local_train(LikedTask(), model_dir=tmp_path / "one")
    back = local_train(
        LikedTask(), start_from=first.checkpoint, model_dir=tmp_path / "one", max_steps=40
    )
    assert back.checkpoint.name == "model.ckpt-r1-40"
    local_train(LikedTask(), start_from=first.checkpoint, model_dir=tmp_path / "two", max_steps=40)
    assert saved_in(tmp_path / "two") == ["model.ckpt-40"]


def test_a_batch_that_was_left_out_is_no_reason_to_save_nothing(tmp_path):
    """Its step is counted, and the input goes on after it."""
    local_train(LikedTask(), model_dir=tmp_path, max_steps=99)

    class Spoiled(LikedTask):
        def step(self, batch, layouts, variables):
            return replace(super().step(batch, layouts, variables), loss=math.nan)

    run = local_train(Spoiled(), model_dir=tmp_path, on_nan="skip")
    assert run.skipped_batches == 1
    assert saved_in(tmp_path) == ["model.ckpt-100", "model.ckpt-99"]


@pytest.mark.parametrize("change", ["expired", "left_out", "filters_reset"])
def test_a_model_that_came_back_with_less_is_not_what_the_checkpoint_has(tmp_path, change):
    first = local_train(LikedTask(), model_dir=tmp_path)
    model = LocalModel()
    report = model.restore(first.checkpoint)
    before = model.settings()
    assert untouched.is_taken_whole(model, before, first.checkpoint, report)
    less = replace(report, **{change: 1})
    assert not untouched.is_taken_whole(model, before, first.checkpoint, less)


def test_the_input_goes_on_where_the_last_increment_was_saved(tmp_path):
    first = local_train(LikedTask(), model_dir=tmp_path, max_steps=40)
    later = local_train(LikedTask(), start_from=first.checkpoint, model_dir=tmp_path / "other")
    base = increments.read_chain(first.checkpoint)
    work = increments.begin(first.checkpoint, 1, 60, "s")
    content = replace(
        base.base,
        step=60,
        files=(),
        link=base.next_link(),
        cursors=manifest.read(later.checkpoint).cursors,
    )
    manifest.write(work, content)
    increments.publish(work, first.checkpoint, 1)

    rest = local_train(LikedTask(), start_from=first.checkpoint)
    assert rest.step == 60
    assert rest.losses == []  # the input of the increment is at its end

    joined = local_train(LikedTask(), model_dir=tmp_path)
    assert joined.checkpoint.name == "model.ckpt-60", "what increments have, in one checkpoint"


def test_batches_of_another_size_leave_no_example_out(tmp_path):
    first = local_train(LikedTask(batch_size=64), model_dir=tmp_path, max_steps=50)
    rest = local_train(LikedTask(batch_size=100), model_dir=tmp_path)
    assert first.examples == 3200
    assert rest.examples == 3200  # 64 of the batches of 100: it goes on at example 3,200


def test_it_saves_every_so_many_steps(tmp_path):
    local_train(LikedTask(), model_dir=tmp_path, save_every_steps=40)
    names = {path.name for path in tmp_path.glob("model.ckpt-*")}
    assert names == {"model.ckpt-40", "model.ckpt-80", "model.ckpt-100"}


class StepSeen(Hook):
    """Says when a step is done."""

    def __init__(self, step):
        self._step = step
        self.is_done = threading.Event()

    def after_step(self, worker, done):
        if done.global_step == self._step:
            self.is_done.set()


class BatchAfterSave(LikedTask):
    """Has no batch after the fourth step before that step is saved."""

    def __init__(self, model_dir):
        super().__init__()
        self._saved = model_dir / "model.ckpt-4"
        self._fourth = StepSeen(4)
        self.hooks = (self._fourth,)

    def batch(self, number):
        if number == 4:
            assert self._fourth.is_done.wait(10)
            wait_until(self._saved.exists, 5)

        return super().batch(number)


def test_a_save_that_is_due_does_not_wait_for_the_next_batch(tmp_path):
    local_train(BatchAfterSave(tmp_path), model_dir=tmp_path, save_every_steps=4, max_steps=5)


def test_a_directory_that_a_job_uses_is_refused_and_left_alone(tmp_path):
    owner = ModelDirOwnership(tmp_path, "job")
    with pytest.raises(ModelDirInUse, match="is in use: a controller"):
        local_train(LikedTask(), model_dir=tmp_path)
    assert not owner.is_replaced
    assert not list(tmp_path.glob("model.ckpt-*"))
    owner.release()
    assert local_train(LikedTask(), model_dir=tmp_path, max_steps=3).step == 3


def test_no_job_and_no_second_local_train_starts_where_one_trains(tmp_path):
    refused = []

    def try_others(step, loss):
        if step == 1:
            for start in (
                lambda: ModelDirOwnership(tmp_path, "job"),
                lambda: local_train(LikedTask(), model_dir=tmp_path),
            ):
                with pytest.raises(ModelDirInUse, match="trains there with local_train"):
                    start()
                refused.append(step)

    local_train(LikedTask(), model_dir=tmp_path, max_steps=2, on_step=try_others)
    assert refused == [1, 1]
    ModelDirOwnership(tmp_path, "job").release()


class Mean(FeatureTask):
    """A task without any table: the mean of the labels, as a variable."""

    variables = (mg.VariableConfig("mean", np.zeros(1, np.float32), mg.Sgd(0.1)),)

    def num_batches(self):
        return 200

    def batch(self, number):
        return FeatureBatch({}, np.array([1, 0, 0, 0], np.float32))

    def step(self, batch, layouts, variables):
        error = variables["mean"] - batch.labels.mean()
        return StepOutput(float(error[0] ** 2), variables={"mean": 2 * error})


def test_a_task_without_any_table_trains():
    run = local_train(Mean())
    _, variables = run.read({}, ["mean"])
    assert abs(variables["mean"][0] - 0.25) < 1e-4


class Spoiled(LikedTask):
    """Batch 3 is not as it should be."""

    def batch(self, number):
        batch = super().batch(number)
        if number == 3:
            spoiled = batch.labels.copy()
            spoiled[:2] = self.options["label"]
            return FeatureBatch(batch.ids, spoiled)
        return batch


def test_labels_outside_0_to_1_are_refused_with_their_place():
    with pytest.raises(BadData, match=r"batch 3: 2 of 64 labels are outside 0..1, .*2.0") as raised:
        local_train(Spoiled(label=2))
    assert raised.value.__notes__ == ["step 3, batch 3"]


class NanLoss(LikedTask):
    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        is_bad = batch.labels[0] == 0.5
        return StepOutput(math.nan if is_bad else learned.loss, learned.layouts, learned.variables)

    def batch(self, number):
        batch = super().batch(number)
        if number in (3, 7):
            batch.labels[0] = 0.5
        return batch


def test_a_loss_that_is_nan_stops_training_or_is_left_out_and_counted():
    with pytest.raises(NonFiniteValue, match=r"the loss is nan.*--on-nan skip") as raised:
        local_train(NanLoss())
    assert raised.value.__notes__ == ["step 3, batch 3"]

    run = local_train(NanLoss(), on_nan="skip")
    assert run.skipped_batches == 2
    assert run.step == 100
    assert run.examples == 98 * 64
    assert [number for number, loss in enumerate(run.losses) if math.isnan(loss)] == [3, 7]
    with pytest.raises(InvalidRequest, match="on_nan='maybe'"):
        local_train(NanLoss(), on_nan="maybe")


class WrongShape(LikedTask):
    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        learned.layouts["bias"] = learned.layouts["bias"][:-1]
        return learned


class WrongVariable(LikedTask):
    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        learned.variables["bias"] = np.zeros((2, 1), np.float32)
        return learned


class WrongAnswer(LikedTask):
    def step(self, batch, layouts, variables):
        return 0.5


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (WrongShape, ShapeMismatch, r"layout bias: gradients are .*\[63, 1\].*\[64, 1\]"),
        (WrongVariable, ShapeMismatch, r"variable bias: update is float32 \[2, 1\], expected"),
        (WrongAnswer, InvalidRequest, r"step\(\) returned float, expected StepOutput"),
        (FeatureTask, InvalidRequest, r"FeatureTask has no .*batch\(number\)"),
    ],
)
def test_a_step_that_answers_wrongly_is_refused(task, error, message):
    with pytest.raises(error, match=message):
        local_train(task())


def test_nothing_of_a_refused_push_is_applied():
    with pytest.raises(ShapeMismatch):
        local_train(WrongVariable())
    run = local_train(LikedTask(), max_steps=1)
    ids = mg.Ids(np.arange(2), distinct=True)
    good = {"user": (ids, np.ones((2, 5), np.float32))}
    before, _ = run.read({"user": ids}, [])
    with pytest.raises(ShapeMismatch):
        run.model.push(good, {"bias": np.zeros(2, np.float32)})
    after, _ = run.read({"user": ids}, [])
    np.testing.assert_array_equal(before["user"], after["user"])


class Watching(Hook):
    """Notes what it is told, and ends training at a step."""

    def __init__(self, last):
        self.last = last
        self.told = []

    def begin(self, worker):
        self.told.append(("begin", worker.global_step, worker.num_workers, worker.cluster))

    def before_step(self, worker):
        assert current_worker() is worker
        self.told.append(("before", worker.global_step))

    def after_step(self, worker, done):
        self.told.append(("after", done.global_step, done.loss, done.num_examples))
        if done.global_step == self.last:
            worker.request_stop("that is enough")

    def end(self, worker):
        self.told.append(("end", worker.step_of_job()))


def test_speed_and_the_sizes_of_tables_are_logged_without_a_cluster(caplog):
    task = LikedTask(num_examples=64 * 5)
    with caplog.at_level(logging.INFO, "megalith.worker.hooks.figures"):
        run = local_train(task, figures_every_s=1e-6)

    lines = [record.getMessage() for record in caplog.records]
    sizes = {}
    for line in lines:
        if found := re.match(r"table=(\w+) rows=(\d+) bytes=(\d+)", line):
            sizes[found[1]] = int(found[2])
            assert int(found[3]) > 0

    assert set(sizes) == {table.name for table in task.tables}
    assert sum(sizes.values()) == run.model.num_rows
    assert any(line.startswith("step=5 steps_per_s=") for line in lines)

    caplog.clear()
    with caplog.at_level(logging.INFO, "megalith.worker.hooks.figures"):
        local_train(task, figures_every_s=0)
    assert caplog.records == []


def test_hooks_of_the_task_are_called_as_in_a_worker_and_may_end_it(tmp_path):
    task = LikedTask()
    hook = Watching(2)
    task.hooks = (hook,)
    run = local_train(task, model_dir=tmp_path)
    assert hook.told == [
        ("begin", 0, 1, None),
        ("before", 0),
        ("after", 1, run.losses[0], 64),
        ("before", 1),
        ("after", 2, run.losses[1], 64),
        ("before", 2),
        ("end", 2),
    ]
    assert run.checkpoint.name == "model.ckpt-2"
    assert current_worker() is None
