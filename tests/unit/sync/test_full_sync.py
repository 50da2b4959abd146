"""Ranks that train together: what they learn, when they end, and what they save."""

import logging
import math
import threading

import numpy as np
import pytest

import megalith.client as mg
from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.collective.ranks import Ranks
from megalith.controller.saving import saved_input
from megalith.errors import NonFiniteValue, RankFailed, RanksDiffer, ShapeMismatch
from megalith.local import local_train
from megalith.local.model import LocalModel
from megalith.sync import sync_train
from megalith.tasks.api import StepOutput
from megalith.wire.routing import even_owners
from megalith.worker.hooks import Hook, current_worker
from support.liked_task import SLICES, LikedTask
from support.sync_tasks import (
    AddsNumbers,
    DeepFm,
    DelayedUpdate,
    EmbeddingUpdate,
    FloatFeature,
    MeanLoss,
    NotFinite,
    Numbers,
    RaggedIds,
    SequenceFeature,
    updated_densely,
)
from support.thread_ranks import all_of, on_ranks
from support.turns_task import TABLE, TakesTurns

PREFETCHES = pytest.mark.parametrize("prefetch_batches", [0, 2])


def together(size, make_task, **settings):
    return all_of(on_ranks(size, lambda ranks: sync_train(make_task(), ranks=ranks, **settings)))


def rows_and_variables(checkpoint, task, ids):
    run = local_train(task, start_from=checkpoint, max_steps=1, evaluates=False)
    return run.read(ids, [variable.name for variable in task.variables])


LIKED_IDS = {"user": np.arange(300), "film": np.arange(100)}


@pytest.mark.parametrize(("size", "prefetch_batches"), [(1, 2), (2, 0), (2, 2), (3, 2)])
@pytest.mark.parametrize(
    ("task", "options"), [(DeepFm, {"batch_size": 24, "num_examples": 1440}), (LikedTask, {})]
)
def test_ranks_learn_what_one_learns_from_the_joined_batches(
    tmp_path, size, prefetch_batches, task, options
):
    """Rows of these tasks have gradients of the summed loss, and variables of the mean one."""
    if task is LikedTask:
        task = MeanLoss
        options = {"batch_size": 24, "num_examples": 1440, "scale": 24}

    joined = dict(options, joins=size)
    if task is MeanLoss:
        joined |= {"batch_size": 24 * size, "scale": 24 * size}
    reference = local_train(task(**joined), model_dir=tmp_path / "one", evaluates=False)
    runs = together(
        size,
        lambda: task(**options),
        model_dir=tmp_path / "many",
        prefetch_batches=prefetch_batches,
        evaluates=False,
    )
    assert [run.step for run in runs] == [reference.step] * size
    expected = rows_and_variables(reference.checkpoint, task(**options), LIKED_IDS)
    found = rows_and_variables(runs[0].checkpoint, task(**options), LIKED_IDS)
    for theirs, ours in zip(expected, found, strict=True):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6)


def test_gradients_of_a_mean_loss_are_summed_over_ranks_for_rows_and_averaged_for_variables(
    tmp_path,
):
    """So one rank that learns the same has the sparse gradients times the number of ranks."""
    joined = MeanLoss(batch_size=64, num_examples=1280, joins=2, scale=2)
    reference = local_train(joined, model_dir=tmp_path / "one", evaluates=False)
    runs = together(
        2,
        lambda: MeanLoss(batch_size=32, num_examples=1280),
        model_dir=tmp_path / "two",
        evaluates=False,
    )
    expected = rows_and_variables(reference.checkpoint, MeanLoss(), LIKED_IDS)
    found = rows_and_variables(runs[0].checkpoint, MeanLoss(), LIKED_IDS)
    for theirs, ours in zip(expected, found, strict=True):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("size", "prefetch_batches"), [(1, 0), (1, 2), (2, 0), (2, 2), (4, 2)])
@pytest.mark.golden("G27")
def test_an_embedding_is_updated_as_a_dense_matrix_by_adagrad(size, prefetch_batches):
    runs = together(size, EmbeddingUpdate, prefetch_batches=prefetch_batches)
    found = np.array(list(runs[0].figures.values())).reshape(4, 3)
    np.testing.assert_allclose(found, updated_densely(size), rtol=0, atol=1e-6)
    assert [run.step for run in runs] == [10] * size
    assert runs[0].figures
    assert not any(run.figures for run in runs[1:])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_with_the_weights_that_were_read_beside_them_go_to_their_rows(size):
    runs = together(size, DelayedUpdate)
    found = np.array(list(runs[0].figures.values())).reshape(4, 3)
    np.testing.assert_allclose(found, updated_densely(size), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_feature_without_a_gradient_on_some_ranks_has_that_of_the_others(size):
    """In a table that it shares: in a step, one rank may train it and another one not."""
    check_turns(TakesTurns, size)


@pytest.mark.parametrize("size", [1, 2])
def test_300_000_rows_of_a_shared_table_are_trained_by_the_features_with_a_gradient(size):
    check_turns(
        lambda: TakesTurns(batch_size=200_000, num_examples=200_000 * 4, num_ids=300_000), size
    )


def check_turns(make_task, size):
    tasks = []

    def train(ranks):
        task = make_task()
        if ranks.is_first:
            tasks.append(task)

        run = sync_train(task, ranks=ranks)
        return run.model.rows_by_table()[TABLE]

    num_rows = all_of(on_ranks(size, train))
    tasks[0].check(tasks[0].found, num_rows[0], size)


@PREFETCHES
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("task", [RaggedIds, FloatFeature, SequenceFeature])
@pytest.mark.golden("G27")
def test_tasks_of_features_finish_their_steps(size, task, prefetch_batches):
    runs = together(
        size, lambda: task(num_workers=size), prefetch_batches=prefetch_batches, max_steps=4
    )
    assert [run.step for run in runs] == [4] * size
    assert [run.examples for run in runs] == [4] * size
    # Each step moves a weight by 0.1 * size / sqrt(1 + steps so far * size^2).
    num_ids = 2 if task is SequenceFeature else 4
    weight = -sum(0.1 * size / math.sqrt(1 + step * size**2) for step in range(1, 4))
    assert runs[0].losses[0] == 0
    np.testing.assert_allclose(runs[0].losses[3], 5 * num_ids * weight, rtol=1e-6)


@PREFETCHES
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("as_batch", [int, lambda number: {"1": number}], ids=["plain", "dict"])
@pytest.mark.golden("G20")
def test_the_elements_1_2_and_3_are_added_up_to_6(size, as_batch, prefetch_batches):
    runs = together(
        size,
        lambda: AddsNumbers((3,) * size, as_batch),
        prefetch_batches=prefetch_batches,
    )
    assert runs[0].figures == {"total": 6.0}


def test_all_ranks_end_after_the_element_that_is_the_last_of_one(caplog):
    with caplog.at_level(logging.WARNING):
        runs = together(3, lambda: AddsNumbers((5, 2, 4)))
    assert [run.step for run in runs] == [2, 2, 2]
    assert runs[0].figures == {"total": 3.0}
    assert [run.untrained_batches for run in runs] == [5, 5, 5]
    assert "batches left by rank: 3, 0, 2" in caplog.text


def test_a_rank_without_any_batch_ends_all_before_the_first_step():
    runs = together(2, lambda: AddsNumbers((3, 0)))
    assert [run.step for run in runs] == [0, 0]
    assert runs[0].untrained_batches == 3


class StopsAt(Hook):
    def __init__(self, rank, step):
        self.rank = rank
        self.step = step
        self.seen = []

    def after_step(self, worker, done):
        self.seen.append((worker.index, worker.num_workers, current_worker() is worker))
        if worker.index == self.rank and done.global_step == self.step:
            worker.request_stop("that is enough")


def test_a_stop_that_a_hook_of_one_rank_asks_for_ends_all_at_that_step():
    tasks = []

    def make_task():
        task = AddsNumbers((9, 9))
        task.hooks = (StopsAt(1, 4),)
        tasks.append(task)
        return task

    runs = together(2, make_task)
    assert [run.step for run in runs] == [4, 4]
    assert sorted(task.hooks[0].seen[0] for task in tasks) == [(0, 2, True), (1, 2, True)]


class CountsCalls(Hook):
    def __init__(self):
        self.before = 0

    def before_step(self, worker):
        self.before += 1


def test_a_signal_to_one_rank_stops_all_and_they_save(tmp_path):
    def train(ranks):
        calls = CountsCalls()
        task = LikedTask()
        task.hooks = (calls,)
        return sync_train(
            task,
            ranks=ranks,
            model_dir=tmp_path,
            is_stopped=lambda: ranks.index == 1 and calls.before > 7,
        )

    runs = all_of(on_ranks(2, train))
    assert [run.step for run in runs] == [7, 7]
    assert {run.checkpoint.name for run in runs} == {"model.ckpt-7"}


class Late(Numbers):
    """Has a third number once it is told to."""

    def __init__(self, last):
        super().__init__(last, lambda number: number)
        self.may_go_on = threading.Event()
        self.waits = threading.Event()

    def batches(self, cursor):
        for batch in super().batches(cursor):
            if batch.batch == 3:
                self.waits.set()
                self.may_go_on.wait(60)
            yield batch

    def stop(self):
        self.may_go_on.set()


class WaitsForInput(AddsNumbers):
    """The input of rank 1 has no third number for a while."""

    def __init__(self, late):
        super().__init__((4, 4))
        self._late = late
        self.hooks = (CountsCalls(),)

    def input(self, mode, index, count):
        return self._late if index == 1 else super().input(mode, index, count)


def test_ranks_that_wait_for_the_input_of_one_can_be_saved_and_stopped(tmp_path):
    late = Late(4)

    def train(ranks):
        return sync_train(
            WaitsForInput(late),
            ranks=ranks,
            model_dir=tmp_path,
            is_stopped=lambda: (
                ranks.index == 0 and late.waits.is_set() and (tmp_path / "model.ckpt-2").exists()
            ),
            save_every_s=0.01,
        )

    runs = all_of(on_ranks(2, train))
    assert [run.step for run in runs] == [2, 2]
    assert runs[0].figures == {"total": 3.0}


def test_a_step_that_was_waited_for_is_announced_to_hooks_once_and_none_is_left_out():
    late = Late(4)
    tasks = []

    def train(ranks):
        tasks.append(WaitsForInput(late))
        asked = []

        def is_stopped():
            asked.append(late.waits.is_set())
            if sum(asked) > 3:  # rounds in which rank 1 has no batch
                late.may_go_on.set()
            return False

        return sync_train(tasks[-1], ranks=ranks, is_stopped=is_stopped)

    runs = all_of(on_ranks(2, train))
    assert [run.step for run in runs] == [4, 4]
    assert runs[0].figures == {"total": 10.0}
    assert [task.hooks[0].before for task in tasks] == [4, 4]


def test_a_loss_that_is_nan_ends_all_ranks_or_is_left_out_on_all_of_them():
    first, second = on_ranks(2, lambda ranks: sync_train(NotFinite(), ranks=ranks))
    assert isinstance(second, NonFiniteValue)
    assert second.__notes__ == ["step 1, batch 3"]
    assert isinstance(first, RankFailed)
    assert "rank 1 failed: NonFiniteValue: the loss is nan" in str(first)
    assert "step 1, batch 3" in str(first)

    runs = together(2, NotFinite, on_nan="skip")
    assert [run.skipped_batches for run in runs] == [0, 1]
    assert [run.step for run in runs] == [50, 50]


def test_a_step_without_a_batch_on_one_rank_is_that_of_the_others(tmp_path):
    """Left out is neither a zero in the mean nor a step of its own."""

    class OnlyFirst(MeanLoss):
        def step(self, batch, layouts, variables):
            learned = super().step(batch, layouts, variables)
            is_second = current_worker().index == 1
            return StepOutput(
                np.nan if is_second else learned.loss, learned.layouts, learned.variables
            )

    runs = together(
        2, lambda: OnlyFirst(num_examples=128), on_nan="skip", model_dir=tmp_path / "two"
    )
    alone = local_train(MeanLoss(num_examples=64), model_dir=tmp_path / "one", evaluates=False)
    expected = local_train(MeanLoss(), start_from=alone.checkpoint, max_steps=1)
    found = local_train(MeanLoss(), start_from=runs[0].checkpoint, max_steps=1)
    ids = {"user": np.arange(300)}
    np.testing.assert_array_equal(
        found.read(ids, ["bias"])[0]["user"], expected.read(ids, ["bias"])[0]["user"]
    )
    np.testing.assert_array_equal(
        found.read(ids, ["bias"])[1]["bias"], expected.read(ids, ["bias"])[1]["bias"]
    )


class Raises(LikedTask):
    def step(self, batch, layouts, variables):
        if current_worker().index == 2:
            raise KeyError("a mistake")
        return super().step(batch, layouts, variables)


class WrongShape(LikedTask):
    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        if current_worker().index == 2:
            learned.variables["bias"] = np.zeros((2, 1), np.float32)
        return learned


class RaisesInHook(LikedTask):
    def __init__(self):
        super().__init__()

        class Broken(Hook):
            def after_step(self, worker, done):
                if worker.index == 2:
                    raise RuntimeError("a hook fell over")

        self.hooks = (Broken(),)


class BadInput(LikedTask):
    def batch(self, number):
        if number == 5:
            raise OSError("the disk is gone")
        return super().batch(number)


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (Raises, KeyError, "rank 2 failed: KeyError: 'a mistake'; step 0, batch 2"),
        (WrongShape, ShapeMismatch, "rank 2 failed: ShapeMismatch: variable bias"),
        (RaisesInHook, RuntimeError, "rank 2 failed: RuntimeError: a hook fell over; raised by"),
        (BadInput, OSError, "rank 2 failed: OSError: the disk is gone; batch 5; step 1"),
    ],
)
def test_an_error_of_one_rank_ends_all_and_the_others_say_whose_it_was(task, error, message):
    results = on_ranks(3, lambda ranks: sync_train(task(), ranks=ranks))
    assert type(results[2]) is error
    for result in results[:2]:
        assert type(result) is RankFailed
        assert message in str(result)


def with_table(rank):
    slices = (SLICES[0], mg.Slice("vec", 4 + rank, mg.Zeros(), mg.Adagrad(0.05)))

    class Other(LikedTask):
        features = (mg.Feature("user", slices), mg.Feature("film", slices))

    return Other()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            lambda ranks: sync_train(with_table(ranks.index), ranks=ranks),
            "rank 1 differs from rank 0 in table .*dim=6.*dim=5",
        ),
        (
            lambda ranks: sync_train(LikedTask(), ranks=ranks, max_steps=5 + ranks.index),
            "rank 1 differs from rank 0 in the settings: .*max_steps=6.*max_steps=5",
        ),
    ],
)
def test_ranks_with_other_tables_or_settings_do_not_begin(train, message):
    for result in on_ranks(2, train):
        assert type(result) is RanksDiffer
        with pytest.raises(RanksDiffer, match=message):
            raise result


def test_new_variables_begin_with_the_values_of_rank_0(tmp_path):
    class Drawn(LikedTask):
        def __init__(self, rank):
            super().__init__()
            self.variables = (
                mg.VariableConfig("bias", np.full(1, rank, np.float32), mg.Adagrad(0.05)),
            )

    runs = all_of(
        on_ranks(2, lambda ranks: sync_train(Drawn(ranks.index), ranks=ranks, max_steps=1))
    )
    values = [run.model._variables["bias"].read() for run in runs]
    np.testing.assert_array_equal(values[0], values[1])
    assert abs(values[0][0]) < 0.5


def test_what_is_saved_goes_on_with_as_many_ranks_as_if_nothing_had_happened(tmp_path):
    whole = together(2, LikedTask)
    first = together(2, LikedTask, model_dir=tmp_path, max_steps=20)
    assert [run.checkpoint.name for run in first] == ["model.ckpt-20"] * 2
    rest = together(2, LikedTask, model_dir=tmp_path)
    for rank in range(2):
        assert first[rank].losses + rest[rank].losses == whole[rank].losses
    assert rest[0].figures == whole[0].figures


def test_ranks_that_train_nothing_save_nothing_and_name_what_has_everything(tmp_path):
    first = together(2, LikedTask, model_dir=tmp_path, input_name="day 1")
    again = together(2, LikedTask, model_dir=tmp_path, input_name="day 1")
    assert [run.has_nothing_new for run in again] == [True, True]
    assert [run.checkpoint for run in again] == [run.checkpoint for run in first]
    assert again[0].figures == first[0].figures
    other = together(2, LikedTask, model_dir=tmp_path, input_name="day 2")
    assert [run.checkpoint.name for run in other] == [f"model.ckpt-r1-{first[0].step}"] * 2


def test_ranks_save_if_the_input_of_one_of_them_is_elsewhere(tmp_path):
    first = together(2, LikedTask, model_dir=tmp_path)
    (rest,) = together(1, LikedTask, model_dir=tmp_path)
    assert rest.losses == []
    assert not rest.has_nothing_new
    assert rest.checkpoint != first[0].checkpoint


def test_a_checkpoint_has_the_name_of_its_input(tmp_path):
    """A cluster goes on with an input of that name, and reads another one from its beginning."""
    run = together(2, LikedTask, input_name="day 1", model_dir=tmp_path, max_steps=2)[0]
    chain = read_chain(run.checkpoint)
    cursors, _ = saved_input.start_of(chain, "day 1", 2)
    assert len(cursors) == 2
    assert not saved_input.start_of(chain, "day 2", 2)[0]


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_ranks_goes_on_with_the_input(tmp_path, size):
    first = together(2, LikedTask, model_dir=tmp_path, max_steps=20)
    rest = together(size, LikedTask, model_dir=tmp_path)
    trained = sum(run.examples for run in (*first, *rest))
    assert 6400 - 64 * size < trained <= 6400


def test_files_of_an_operator_save_and_stop(tmp_path):
    (tmp_path / "dump_10").touch()
    (tmp_path / "stop_20").touch()

    def train(ranks):
        return sync_train(LikedTask(num_examples=64_000), ranks=ranks, model_dir=tmp_path)

    runs = all_of(on_ranks(2, train))
    # The files are looked at about once a second, the first time before the first step.
    assert 20 <= runs[0].step < 500
    names = {path.name for path in tmp_path.glob("model.ckpt-*")}
    assert f"model.ckpt-{runs[0].step}" in names


def test_planned_saves_are_made_every_so_many_steps_and_only_while_online(tmp_path):
    together(2, LikedTask, model_dir=tmp_path / "a", save_every_steps=20)
    names = {path.name for path in (tmp_path / "a").glob("model.ckpt-*")}
    assert names == {"model.ckpt-20", "model.ckpt-40", "model.ckpt-50"}

    settings = {"save_every_steps": 20, "save_only_online": True}
    together(2, LikedTask, model_dir=tmp_path / "b", **settings)
    assert [path.name for path in (tmp_path / "b").glob("model.ckpt-*")] == ["model.ckpt-50"]


class Large(LikedTask):
    """With variables that a cluster keeps in parts."""

    variables = (
        mg.VariableConfig("bias", np.zeros(1, np.float32), mg.Adagrad(0.05)),
        mg.VariableConfig("many", np.zeros(90_000, np.float32), mg.Adam(0.05)),
        mg.VariableConfig("wide", np.zeros((300, 200), np.float32), mg.Adagrad(0.05)),
    )

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        for name in ("many", "wide"):
            shape = variables[name].shape
            learned.variables[name] = np.linspace(1, 2, variables[name].size, dtype=np.float32)
            learned.variables[name] = learned.variables[name].reshape(shape)
        return learned


def pieces_on(num_ps, checkpoint):
    """What so many ps restore of the variables, by name and part."""
    found = {}
    for index in range(num_ps):
        model = LocalModel()
        model.adopt = lambda table=None, variable=None: (
            variable
            and found.setdefault(
                (variable.config.name, variable.config.part.index if variable.config.part else 0),
                variable.dump(),
            )
        )
        restore_shard(model, checkpoint, even_owners(num_ps), index)
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ps_of_any_number_restore_all_parts_of_the_large_variables_of_ranks(tmp_path, size):
    run = together(size, Large, model_dir=tmp_path, max_steps=3, evaluates=False)[0]
    for num_ps in (1, 2, 3):
        found = pieces_on(num_ps, run.checkpoint)
        for name, variable in run.model._variables.items():
            value, state = variable.dump()
            numbers = sorted(number for each, number in found if each == name)
            pieces = [found[name, number] for number in numbers]
            joined = np.concatenate([piece for piece, _ in pieces])
            np.testing.assert_array_equal(joined, value)
            for field, array in state.items():
                parts = [fields[field] for _, fields in pieces]
                expected = np.concatenate(parts) if array.ndim else parts[0]
                np.testing.assert_array_equal(expected, array)

    for other in (1, 2, 3):
        rest = together(other, Large, start_from=run.checkpoint, max_steps=3, evaluates=False)
        for each in rest:
            for name, variable in run.model._variables.items():
                np.testing.assert_array_equal(each.model._variables[name].read(), variable.read())


def test_one_rank_has_the_losses_of_a_local_training():
    assert sync_train(LikedTask(), ranks=Ranks()).losses == local_train(LikedTask()).losses


def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(tmp_path, monkeypatch):
    from megalith.local import saving

    save_shard = saving.save_shard

    def failing(holder, folder, save_id, index, count):
        if index == 1:
            raise OSError("no space left on device")
        return save_shard(holder, folder, save_id, index, count)

    monkeypatch.setattr(saving, "save_shard", failing)
    first, second = on_ranks(
        2, lambda ranks: sync_train(LikedTask(), ranks=ranks, model_dir=tmp_path)
    )
    assert isinstance(second, OSError)
    assert "rank 1 failed: OSError: no space" in str(first)
    assert not list(tmp_path.glob("model.ckpt-*"))
    assert not list(tmp_path.glob("saving-*"))
