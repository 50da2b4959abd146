"""What a worker writes for TensorBoard, read back by TensorBoard's own reader."""

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.client import nas_summary
from megalith.errors import InvalidSetting, PeerUnreachable
from megalith.runtime.monitoring.metrics import Metrics
from megalith.worker.config import SummarySettings
from megalith.worker.session.progress import Progress
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import Gradients
from support.waiting import wait_until

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="needs: pip install 'megalith[tensorboard]'",
)


def summaries_of(tmp_path, every=1, index=0):
    settings = SummarySettings(tensorboard=str(tmp_path), summary_every_steps=every)
    return StepSummaries(settings, index, Progress())


def read(tmp_path, index=0):
    accumulator = event_accumulator.EventAccumulator(str(tmp_path / f"worker-{index}"))
    accumulator.Reload()
    return accumulator


def scalars(tmp_path, tag, index=0):
    return [(event.step, event.value) for event in read(tmp_path, index).Scalars(tag)]


def gradients(loss, **more):
    return Gradients({"user": np.float32([[3.0], [4.0]])}, {"w": np.float32([0, 2])}, loss, **more)


class Sizes:
    """A cluster whose table has a row more each time; `is_away` says that a ps does not answer."""

    def __init__(self):
        self.rows, self.is_away, self.may_answer = 0, False, threading.Event()
        self.may_answer.set()

    def table_stats(self):
        assert self.may_answer.wait(30)
        if self.is_away:
            raise PeerUnreachable("ps-0 is away")
        self.rows += 1
        return {"user": SimpleNamespace(rows=self.rows, bytes=10 * self.rows)}


def test_losses_metrics_and_norms_of_every_so_many_steps_are_written(tmp_path):
    summaries = summaries_of(tmp_path, every=3)
    for step in range(1, 8):
        summaries.learned(10 * step, gradients(loss=step / 8, metrics={"auc": 0.5}))
        summaries._calls.drain()
    summaries.close()
    assert scalars(tmp_path, "loss") == [(30, 3 / 8), (60, 6 / 8)]
    assert scalars(tmp_path, "auc") == [(30, 0.5), (60, 0.5)]
    assert scalars(tmp_path, "gradient_norm/rows/user") == [(30, 5.0), (60, 5.0)]
    assert scalars(tmp_path, "gradient_norm/variables/w") == [(30, 2.0), (60, 2.0)]
    assert [step for step, _ in scalars(tmp_path, "examples_per_s")] == [30, 60]


def test_each_worker_has_a_folder_and_the_chief_writes_sizes_and_evaluation(tmp_path):
    chief, other = summaries_of(tmp_path), summaries_of(tmp_path, index=1)
    chief.write_sizes_of(Sizes())
    for each in (chief, other):
        each.learned(1, gradients(0.5))
    chief.evaluated(2, {"auc": 0.75})
    chief.close()
    other.close()
    assert scalars(tmp_path, "rows/user") == [(1, 1.0), (2, 2.0)]
    assert scalars(tmp_path, "bytes/user") == [(1, 10.0), (2, 20.0)]
    assert scalars(tmp_path, "evaluation/auc") == [(2, 0.75)]
    assert "rows/user" not in read(tmp_path, 1).Tags()["scalars"]


def test_summaries_of_the_task_are_made_for_written_steps_only(tmp_path):
    made = []

    def make():
        made.append(1)
        return [nas_summary(np.float32([0.5, 0.8]), ["a", "b"], [1, 2])]

    summaries = summaries_of(tmp_path, every=2)
    for step in range(4):
        summaries.learned(step, gradients(0.5, summaries=make))
        summaries._calls.drain()
    summaries.close()
    assert len(made) == 2
    assert [event.step for event in read(tmp_path).Tensors("gating/monolith_nas_weight")] == [1, 3]


def test_while_a_summary_is_written_others_are_left_out_and_no_step_waits(tmp_path, caplog):
    summaries, sizes = summaries_of(tmp_path), Sizes()
    summaries.write_sizes_of(sizes)
    sizes.may_answer.clear()
    for step in range(1, 4):
        summaries.learned(step, gradients(0.5))
    sizes.may_answer.set()
    wait_until(lambda: summaries._calls.is_idle)
    summaries.learned(4, gradients(0.25))
    summaries.close()
    assert scalars(tmp_path, "loss") == [(1, 0.5), (4, 0.25)]
    assert "left out: the summary of step 2: the last one is still being written" in caplog.text
    assert "summaries left out=2" in caplog.text


def test_without_an_answer_of_a_ps_all_but_the_sizes_is_written(tmp_path):
    summaries, sizes = summaries_of(tmp_path), Sizes()
    summaries.write_sizes_of(sizes)
    sizes.is_away = True
    summaries.learned(1, gradients(0.5))
    summaries.close()
    assert scalars(tmp_path, "loss") == [(1, 0.5)]


def test_a_disk_that_fails_leaves_summaries_out_and_training_goes_on(tmp_path, caplog):
    summaries = summaries_of(tmp_path)
    metrics = Metrics()
    summaries.count_in(metrics)
    summaries._events.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        summaries._events._file = full
        for step in (1, 2):
            summaries.learned(step, gradients(0.5))
            summaries._calls.drain()
        summaries.close()

    assert "left out: the summary of step 1: [Errno 28] No space left on device" in caplog.text
    assert "summaries left out=2" in caplog.text
    assert metrics.registry.get_sample_value("megalith_summaries_left_out_total") == 2


def test_a_directory_that_cannot_be_written_is_named_with_its_setting(tmp_path):
    (tmp_path / "worker-0").write_text("")
    with pytest.raises(InvalidSetting, match=r"--tensorboard=.*cannot be written to .*worker-0"):
        summaries_of(tmp_path)


def test_an_interval_of_no_steps_is_refused():
    with pytest.raises(InvalidSetting, match="--summary-every-steps=0"):
        SummarySettings(summary_every_steps=0)
