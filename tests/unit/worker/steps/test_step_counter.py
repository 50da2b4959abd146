"""The count of all workers' batches, over a ps that takes the larger value of each element and may
forget."""

import random
from types import SimpleNamespace

import numpy as np

from megalith.worker.session.progress import Progress
from megalith.worker.session.view import KnownState
from megalith.worker.steps.step_counter import GLOBAL_STEP, StepCounter, StepPublisher


class Ps:
    """Holds the variables; `restore` is what a kill -9 and a restored checkpoint make of them."""

    def __init__(self):
        self.values = {}

    def create(self, variables):
        for variable in variables:
            self.values.setdefault(variable.name, variable.initial.copy())

    def push(self, at_least):
        for name, value in at_least.items():
            self.values[name] = np.maximum(self.values[name], value)
        return {name: self.values[name].copy() for name in at_least}

    def saved(self):
        return {name: value.copy() for name, value in self.values.items()}

    @property
    def step(self):
        return int(self.values[GLOBAL_STEP])


def state(*positions, first_step=0, global_step=0):
    return KnownState(positions=positions, first_step=first_step, global_step=global_step)


def ps_with(counter, now):
    ps = Ps()
    ps.create(counter.variables(now, 0))
    return ps


def test_each_push_counts_one_and_its_answer_tells_the_steps_of_all():
    first, second, now = StepCounter(0), StepCounter(1), state(0, 0)
    ps = ps_with(first, now)
    assert first.answered(now, ps.push(first.least(now, 1))) == 1
    assert second.answered(now, ps.push(second.least(now, 1))) == 2
    assert first.answered(now, ps.push(first.least(now, 2))) == 3


def test_a_replacement_learns_what_its_predecessor_had_trained_and_not_reported():
    counter, now = StepCounter(1), state(3, 5, first_step=100)
    ps = ps_with(counter, now)
    ps.push(counter.least(now, 9))
    replacement = StepCounter(1)
    assert replacement.position(now) == 5
    replacement.answered(now, ps.push(replacement.least(now, 5)))
    assert replacement.position(now) == 9
    assert replacement.answered(now, ps.push(replacement.least(now, 10))) == 100 + 3 + 10


def test_a_push_that_is_applied_again_and_a_batch_that_is_trained_again_count_once():
    counter, now = StepCounter(0), state(0, 0)
    ps = ps_with(counter, now)
    for _ in range(3):
        ps.push(counter.least(now, 5))
    replacement = StepCounter(0)
    for position in (4, 5):  # it goes on at the last report, a step before
        step = replacement.answered(now, ps.push(replacement.least(now, position)))
    assert (step, ps.step) == (5, 5)


def test_the_published_step_may_lag_behind_another_workers_push_until_it_is_published_again():
    first, second, now = StepCounter(0), StepCounter(1), state(0, 0)
    ps = ps_with(first, now)
    least = second.least(now, 1)  # made before the first one's push
    first.answered(now, ps.push(first.least(now, 1)))
    assert second.answered(now, ps.push(least)) == 2
    assert (ps.step, second.is_published) == (1, False)
    second.answered(now, ps.push(second.least(now, 1)))
    assert (ps.step, second.is_published) == (2, True)


def test_a_run_counts_from_the_step_at_which_it_began_whatever_an_earlier_one_left():
    earlier, now = StepCounter(0), state(0, 0)
    ps = ps_with(earlier, now)
    ps.push(earlier.least(now, 6))
    now = state(0, 0, first_step=7, global_step=7)  # the other worker had done one
    counter = StepCounter(0)
    ps.create(counter.variables(now, 0))
    assert counter.answered(now, ps.push(counter.least(now, 0))) == 7
    assert counter.answered(now, ps.push(counter.least(now, 1))) == 8


def test_a_run_with_another_number_of_workers_has_a_vector_of_its_own():
    counter, now = StepCounter(0), state(0, 0)
    ps = ps_with(counter, now)
    ps.push(counter.least(now, 6))
    now = state(0, 0, 0, first_step=6)
    counter = StepCounter(2)
    ps.create(counter.variables(now, 0))
    assert counter.answered(now, ps.push(counter.least(now, 1))) == 7


class PublishedTo:
    """The SDK over a Ps, which counts its pushes."""

    def __init__(self, ps):
        self._ps = ps
        self.num_pushes = 0

    def pull(self, variables):
        values = self._ps.saved()
        return SimpleNamespace(variables={name: values[name] for name in variables})

    def push(self, raise_variables):
        self.num_pushes += 1
        return self._ps.push(raise_variables)


def published(ps, counter, now, position=0):
    """(Pushes that it took, the step that the worker then reports.)"""
    cluster = PublishedTo(ps)
    progress = Progress()
    StepPublisher(counter, cluster, progress).publish(now, position)
    return cluster.num_pushes, progress.snapshot().global_step


def test_publishing_pushes_nothing_if_the_ps_knows_all_so_a_finished_job_saves_no_more():
    trained, now = StepCounter(0), state(0, 0)
    ps = ps_with(trained, now)
    ps.push(trained.least(now, 6) | {GLOBAL_STEP: np.array(6, np.int64)})
    again = state(0, 0, first_step=6, global_step=6)
    assert published(ps, StepCounter(0), again) == (0, 6)
    assert published(ps, StepCounter(0), again, position=1) == (1, 7)
    assert (ps.step, published(ps, StepCounter(0), again, position=1)) == (7, (0, 7))


def test_publishing_raises_a_counter_that_a_checkpoint_has_lower_than_the_controller_knows():
    trained, now = StepCounter(0), state(0, 0)
    ps = ps_with(trained, now)
    ps.push(trained.least(now, 6))
    assert published(ps, StepCounter(0), state(0, 0, first_step=8, global_step=8)) == (1, 8)
    assert ps.step == 8


def test_what_a_finished_worker_did_is_known_from_the_controller_when_a_ps_forgot_it():
    now = state(0, 0)
    chief, other = StepCounter(0), StepCounter(1)
    ps = ps_with(chief, now)
    saved = ps.saved()
    other.answered(now, ps.push(other.least(now, 10)))
    ps.values = saved
    now = state(0, 10)  # as it reported when it was done
    assert chief.answered(now, ps.push(chief.least(now, 1))) == 11


def test_the_count_is_exact_whenever_ps_and_workers_die():
    """Pushes are lost, repeated and applied without an answer; ps and workers die.

    Never too high, in the end exact.
    """
    for seed in range(50):
        chance = random.Random(seed)
        counters, ps = [StepCounter(0), StepCounter(1)], Ps()
        done, reported, batches = [0, 0], [0, 0], [30, 20]
        ps.create(counters[0].variables(state(0, 0), 0))
        saved = ps.saved()
        while done != batches:
            worker = chance.choice([w for w in (0, 1) if done[w] < batches[w]])
            now, event = state(*reported), chance.random()
            if event < 0.1:
                ps.values = {name: value.copy() for name, value in saved.items()}
                ps.push(counters[0].least(now, done[0]))
            elif event < 0.15:
                saved = ps.saved()
            elif event < 0.2:
                counters[worker], done[worker] = StepCounter(worker), reported[worker]
            elif event < 0.3:
                reported[worker] = max(reported[worker], done[worker])
            else:
                values = ps.push(counters[worker].least(now, done[worker] + 1))
                if chance.random() < 0.8:
                    done[worker] += 1
                    assert counters[worker].answered(now, values) <= 50
        now = state(*done)
        assert counters[0].answered(now, ps.push(counters[0].least(now, done[0]))) == ps.step == 50
