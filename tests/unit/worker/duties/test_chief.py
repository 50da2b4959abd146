"""What the chief creates when a ps was replaced."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.schema import Sgd, VariableConfig
from megalith.worker.duties import chief as module
from megalith.worker.duties.chief import Chief, with_last_value
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import ClusterPhase, ClusterView, KnownState
from megalith.worker.steps.failover import Failover
from megalith.worker.steps.gate import Gate
from megalith.worker.steps.step_counter import StepCounter, StepPublisher
from support.waiting import wait_until

CONFIG = VariableConfig("w", np.zeros(2, np.float32), Sgd(0.5))


def test_a_variable_begins_again_with_the_value_that_was_last_read():
    again = with_last_value(CONFIG, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(again.initial, [1, 2])
    assert again.optimizer == CONFIG.optimizer


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_a_value_that_is_not_finite_does_not_end_the_chief_and_is_said_in_the_log(caplog, spoiled):
    last = np.array([1, spoiled], np.float32)
    assert with_last_value(CONFIG, last) is CONFIG
    assert "variable=w" in caplog.text
    assert with_last_value(CONFIG, None) is CONFIG


class HeldUpCluster:
    """Creates at once; its pushes wait for one that waits for a ps."""

    def __init__(self):
        self.num_pushes = 0
        self.is_free = threading.Event()

    def expect_epoch(self, epoch):
        pass

    def create_tables(self, *tables, allow_new_layout=False): ...

    def create_variables(self, *variables): ...

    def pull(self, variables):
        return SimpleNamespace(variables={name: np.zeros(1, np.int64) for name in variables})

    def push(self, raise_variables):
        self.num_pushes += 1
        assert self.is_free.wait(30)
        return raise_variables


def test_the_chief_initializes_each_new_epoch_though_a_push_of_its_own_waits_for_a_lost_ps(
    monkeypatch,
):
    monkeypatch.setattr(module, "_PUBLISH_S", 0.05)
    view = ClusterView()
    progress = Progress()
    cluster = HeldUpCluster()
    task = SimpleNamespace(tables=(), variables=())
    announced = []
    counter = StepCounter(0)
    chief = Chief(
        task,
        cluster,
        view,
        progress,
        lambda: announced.append(1),
        failover=Failover(5.0, 6, lambda: view.state.epoch, view.pause, progress.failed_over),
        gate=Gate(view, progress, lambda: None, lambda: True),
        counter=counter,
        publisher=StepPublisher(counter, cluster, progress),
        last_variables=dict,
        timeout_s=1800.0,
    )
    for epoch in (2, 3):
        state = KnownState(ClusterPhase.INITIALIZING, epoch, positions=(7,))
        view.update(state)
        chief.initialize(state)
        assert progress.snapshot().initialized_epoch == epoch
    assert len(announced) == 2
    assert cluster.num_pushes == 1  # no queue of them grows
    cluster.is_free.set()
    wait_until(lambda: progress.snapshot().global_step == 7)
