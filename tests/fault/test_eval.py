"""`megalith eval` as a process that is killed while checkpoints come and go."""

import json
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import megalith.client as mg
from megalith.checkpoint.directory import catalog
from megalith.cli.runs.run_record import RunRecord
from megalith.runner.config import RunnerConfig
from megalith.tasks.auc import auc
from megalith.tasks.ctr import make_task
from support import checkpoints
from support.waiting import wait_until

NUM_ITEMS = 300_000


def steps_scored(model_dir):
    path = model_dir / "eval.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in lines]


def start(model_dir, log):
    command = [sys.executable, "-m", "megalith", "eval", str(model_dir), "--max-steps", "40"]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def test_an_evaluation_that_is_killed_goes_on_and_scores_each_checkpoint_once(tmp_path):
    rng = np.random.default_rng(1)
    items = rng.integers(NUM_ITEMS, size=2000)
    clicks = rng.integers(2, size=items.size)
    pq.write_table(pa.table({"click": clicks, "item": items}), tmp_path / "held_out.parquet")
    options = {
        "data": "gone.parquet",
        "eval_data": str(tmp_path / "held_out.parquet"),
        "label": "click",
        "features": "item",
        "model": "lr",
    }
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    config = RunnerConfig(model_dir=str(model_dir), task="ctr", task_options=json.dumps(options))
    RunRecord(model_dir, print).write_settings(config)
    task = make_task(batch_size=8, num_examples=0, seed=1, scores_only=True, **options)
    expected = {}

    def save(step):
        weights = rng.normal(0, 1, (NUM_ITEMS, 1)).astype(np.float32)
        ids = mg.hash_ids(np.arange(NUM_ITEMS))
        variables = {"bias": np.ones(1, np.float32)}
        stores = checkpoints.stores_with([(task.tables[0], ids, weights, 7)], variables)
        checkpoints.write(stores, model_dir, step)
        expected[step] = auc(clicks, weights[items, 0])

    save(10)
    with (tmp_path / "log").open("wb") as log:
        evaluation = start(model_dir, log)
        try:
            wait_until(lambda: steps_scored(model_dir) == [10], timeout_s=60)
            evaluation.send_signal(signal.SIGKILL)
            assert evaluation.wait() == -signal.SIGKILL

            # While nobody looks, one comes, and one comes and goes.
            save(20)
            save(30)
            save(40)
            assert catalog.remove(model_dir, "model.ckpt-20")
            evaluation = start(model_dir, log)
            assert evaluation.wait(timeout=60) == 0
        finally:
            evaluation.kill()
            evaluation.wait()

    lines = [json.loads(line) for line in (model_dir / "eval.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 30, 40]
    for line in lines:
        assert line["rows"] == NUM_ITEMS
        assert abs(line["results"]["auc"] - expected[line["step"]]) < 1e-6
