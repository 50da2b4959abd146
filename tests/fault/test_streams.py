"""`megalith train ctr` on a Kafka topic and on files that come: twice, and nothing is read twice."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import megalith.client as mg
import megalith.serving as serving
from megalith.errors import UnknownTable
from support.kafka import mock_broker
from support.pages import ROOT
from support.processes import Processes, run_cli
from support.waiting import wait_until


def rows(count, seed):
    rng = np.random.default_rng(seed)
    users = rng.integers(0, 500, count)
    items = rng.integers(0, 300, count)
    return [
        {"user": int(user), "item": f"i{item}", "price": float(item % 7), "click": int(user % 2)}
        for user, item in zip(users, items, strict=True)
    ]


def train(model_dir, data, num_workers, follow, *more):
    told = "--label click --features user,item --dense price --model lr --batch-size 500 --ps 1"
    status, output, errors = run_cli(
        "train",
        "ctr",
        "--data",
        data,
        "--model-dir",
        str(model_dir),
        "--workers",
        str(num_workers),
        "--follow",
        follow,
        *told.split(),
        *more,
    )
    assert status == 0, output + errors
    found = re.search(r"examples +│ ([\d,]+)", output)
    assert found, output
    return int(found[1].replace(",", ""))


def test_a_topic_is_trained_to_its_end_and_later_from_there(tmp_path):
    with mock_broker() as broker:
        broker.send("clicks", rows(20_000, 1))
        assert train(tmp_path / "model", broker.url("clicks"), 2, "no") == 20_000

        broker.send("clicks", rows(3_000, 2))
        assert train(tmp_path / "model", broker.url("clicks"), 1, "no") == 3_000


def test_messages_that_cannot_be_read_are_counted_where_a_person_looks(tmp_path):
    with mock_broker() as broker:
        broker.send("clicks", [*rows(2_000, 1), b"no json", *rows(2_000, 2), b"[1]"], 2)
        url = broker.url("clicks")
        assert train(tmp_path / "model", url, 1, "no", "--on-lost-data", "skip") == 4_000

    last = (tmp_path / "model/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["workers"][0]["skipped_messages"] == 2


@pytest.mark.long
def test_new_files_are_trained_and_old_ones_are_not_trained_again(tmp_path):
    pattern = f"{tmp_path}/data/{{date}}/{{hour}}/*.parquet"

    def write(hour, count):
        folder = tmp_path / f"data/2026-11-01/{hour:02d}"
        folder.mkdir(parents=True)
        table = pa.Table.from_pylist(rows(count, hour))
        pq.write_table(table, folder / "a.parquet", row_group_size=1000)

    write(0, 8_000)
    write(1, 4_000)
    assert train(tmp_path / "model", pattern, 2, "3") == 12_000

    write(2, 5_000)
    assert train(tmp_path / "model", pattern, 2, "3") == 5_000


def test_the_clicks_of_the_example_script_are_trained_as_they_come(tmp_path):
    script = subprocess.Popen(
        [sys.executable, ROOT / "examples/stream_clicks.py", "--clicks", "12000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        topic = script.stdout.readline().strip()
        assert topic.endswith("/clicks"), topic
        assert train(tmp_path / "model", topic, 2, "6") == 12_000
        assert script.poll() is None, "it is the broker, so it lives on"
        script.send_signal(signal.SIGINT)
        assert script.wait(60) == 0
    finally:
        script.kill()
        script.communicate()


def test_what_a_message_trains_is_seen_at_the_replica(tmp_path):
    """Topic, worker, ps, replica: a user who was never seen before has a row a moment later."""
    model_dir = tmp_path / "model"
    old = mg.hash_ids([1, 3])
    new = mg.hash_ids([1_000_001])
    with mock_broker() as broker, Processes(tmp_path) as processes:
        broker.send("clicks", rows(2_000, 1))
        told = "--label click --features user,item --dense price --model lr --batch-size 200"
        job = processes.cli(
            "train",
            "ctr",
            f"--data={broker.url('clicks')}",
            f"--model-dir={model_dir}",
            "--follow=yes",
            "--ps=1",
            "--workers=1",
            "--replicas=1",
            *told.split(),
        )
        with (
            serving.connect(model_dir=str(model_dir), timeout_s=120) as client,
            mg.connect(model_dir=str(model_dir), connect_timeout_s=120) as cluster,
        ):
            wait_until(lambda: cluster.table_stats(), 120, "the chief makes tables")
            (table,) = [name for name in cluster.table_stats() if "user" in name]

            def served(ids):
                return client.lookup({table: ids}, max_staleness_s=60).rows[table]

            def are_seen(ids):
                try:
                    return served(ids).any(axis=1).all()
                except UnknownTable:
                    return False  # the replica has not heard of it yet

            wait_until(lambda: are_seen(old), what="the first messages are seen")
            assert not served(new).any()

            message = {"user": 1_000_001, "item": "i1", "price": 1.0, "click": 1}
            broker.send("clicks", [message] * 200)
            wait_until(lambda: are_seen(new), what="the new user is seen")
            trained = cluster.pull({table: new}).rows[table]
            wait_until(lambda: np.array_equal(served(new), trained), what="it is what was trained")

        job.terminate()
        assert job.wait(100) == 130, job.output()
