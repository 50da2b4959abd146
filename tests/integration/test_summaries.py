"""A job that writes for TensorBoard, read back by TensorBoard's own reader."""

import json

import pytest

from megalith.errors import InvalidSetting
from megalith.worker.config import SummarySettings, TaskSettings, WorkerConfig
from megalith.worker.server import WorkerServer
from support.servers import Servers
from support.waiting import wait_until

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="needs: pip install 'megalith[tensorboard]'",
)
tensor_util = pytest.importorskip("tensorboard.util.tensor_util")

TASK = TaskSettings(task="support.liked_task:SummarizedTask", batch_size=64, num_examples=64 * 100)


def worker_config(servers, index, directory):
    return WorkerConfig(
        index=index,
        step_timeout_s=60.0,
        task=TASK,
        summaries=SummarySettings(tensorboard=str(directory), summary_every_steps=10),
        membership=servers.membership(),
    )


def trained(model_dir, directory):
    with Servers(model_dir, num_ps=2, num_workers=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index)
        for index in range(2):
            config = worker_config(servers, index, directory)
            servers.start(
                f"worker-{index}", lambda request, config=config: WorkerServer(config, request)
            )
        cluster = servers.connect()
        status = wait_until(lambda: (now := cluster.controller.status()).outcome and now, 100)
        return status, cluster.table_stats()


def read(directory):
    accumulator = event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return accumulator


@pytest.mark.golden("G17")
def test_a_job_leaves_losses_figures_sizes_and_summaries_of_its_task(tmp_path):
    status, stats = trained(tmp_path / "model", tmp_path / "logs")
    assert status.outcome == "succeeded", status.reason
    chief, other = (read(tmp_path / "logs" / f"worker-{index}") for index in range(2))

    for worker in (chief, other):
        losses = worker.Scalars("loss")
        assert 1 <= len(losses) <= 5  # of 50 steps every tenth, unless the last was still written
        assert all(0.1 < event.value < 1.5 and 0 < event.step <= 100 for event in losses)
        assert all(0 < event.value < 1 for event in worker.Scalars("mean_label"))
        assert all(event.value > 0 for event in worker.Scalars("gradient_norm/rows/user"))
        assert worker.Scalars("gradient_norm/variables/bias")

    assert chief.Scalars("rows/user")[-1].value == stats["user"].rows
    assert chief.Scalars("evaluation/auc")[-1].value == pytest.approx(
        status.results["auc"], abs=1e-6
    )
    assert chief.Scalars("evaluation/auc")[-1].step == 100

    (weights, *_) = chief.Tensors("gating/monolith_nas_weight")
    assert tensor_util.make_ndarray(weights.tensor_proto).tolist() == pytest.approx([0.5, 0.8])
    (insight, *_) = chief.Tensors("fi_train/monolith_feature_insight")
    assert tensor_util.make_ndarray(insight.tensor_proto).shape == (64, 5)
    content = chief.SummaryMetadata("fi_train/monolith_feature_insight").plugin_data.content
    assert json.loads(content) == {
        "tag_type": "fi_train",
        "segment_names": ["user", "film"],
        "segment_sizes": [2, 2],
        "group_index": [0, 1],
        "label_size": 1,
    }


def test_a_worker_whose_summaries_cannot_be_written_does_not_start(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with Servers(tmp_path / "model", num_ps=1, num_workers=1) as servers:
        config = worker_config(servers, 0, tmp_path / "logs")
        with pytest.raises(InvalidSetting, match=r"--tensorboard=.*logs: summaries cannot be"):
            WorkerServer(config, None)
