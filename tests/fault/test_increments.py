"""kill -9 of a parameter server whose job takes increments twice a second."""

import time
from pathlib import Path

import numpy as np

from megalith.checkpoint.directory.increments import read_chain
from megalith.client import Segment, Sgd, TableConfig, Zeros, connect
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire.channel import open_channel
from support import at_size
from support.processes import Processes
from support.routes import routing_of
from support.waiting import wait_until

ROWS = 300_000
TABLE = TableConfig("sums", (Segment(1, Zeros(), Sgd(1.0)),))


def ones(count):
    return np.ones((count, 1), np.float32)


def pull(cluster, ids):
    parts = np.array_split(ids, 4)
    return np.concatenate([cluster.pull({"sums": part}).rows["sums"][:, 0] for part in parts])


def push_as(client_id, current, index, ids, is_repeated=False):
    """A push under sequence 1 of that client, straight to one server."""
    request = pb.PushRequest(
        epoch=current.epoch,
        run_id=current.run_id,
        client_id=client_id,
        sequence=1,
        is_repeated=is_repeated,
        first_try_ms_ago=1,
        tables=[
            pb.TableGradients(table="sums", ids=ids.tobytes(), gradients=ones(ids.size).tobytes())
        ],
    )
    with open_channel(current.addresses[index]) as channel:
        parameter_server_pb2_grpc.ParameterServerStub(channel).Push(request, timeout=30)


def test_a_killed_ps_loses_no_more_than_came_after_the_last_increment(tmp_path):
    ids = at_size.ids_in("random", ROWS)
    rng = np.random.default_rng(0)
    with Processes(tmp_path) as processes:
        members = processes.start_cluster(
            num_ps=2, num_workers=1, increment_every_s=0.5, suspect_s=1
        )
        job = processes.job()
        wait_until(lambda: job.status().phase == "running")
        with connect(model_dir=str(processes.model_dir), timeout_s=120) as cluster:
            cluster.create_tables(TABLE)
            for part in np.array_split(ids, 4):
                cluster.push({"sums": (part, ones(part.size))})
            base = Path(job.save().path)

            current = routing_of(job)
            own = ids[current.owner_of(ids) == 1]
            push_as("remembered", current, 1, own[:1000])
            pushed = [own[:1000]]
            acknowledged_at = [time.time()]
            while read_chain(base).number < 3:
                batch = rng.choice(ids, 5000, replace=False)
                cluster.push({"sums": (batch, ones(batch.size))})
                pushed.append(batch)
                acknowledged_at.append(time.time())

            members["ps-1"].kill()
            last = read_chain(base).last
            wait_until(lambda: job.status().phase == "forming")
            processes.start_member("ps", 1)
            wait_until(lambda: job.status().epoch > current.epoch, what="a map with the new ps")
            wait_until(lambda: job.status().phase == "running")
            current = routing_of(job)
            push_as("remembered", current, 1, own[:1000], is_repeated=True)
            values = pull(cluster, ids)
            restored = job.status().members[1].restored
            step = job.status().global_step
            wait_until(lambda: job.status().global_step > step)

    # The server that lived has all pushes; the other one has all up to some moment, and that is not
    # before the last increment was begun.
    is_own = np.isin(ids, own)
    sums = np.full(ids.size, -1.0)
    order = np.argsort(ids)
    matches = []
    for number, batch in enumerate(pushed):
        sums[order[np.searchsorted(ids, batch, sorter=order)]] -= 1
        if np.array_equal(values[is_own], sums[is_own]):
            matches.append(number)
    np.testing.assert_array_equal(values[~is_own], sums[~is_own])
    assert len(matches) == 1, "all of a push, or nothing of it; and none of them twice"
    kept = matches[0] + 1
    before_it = sum(at < last.saved_at_s for at in acknowledged_at)
    assert before_it <= kept <= len(pushed)
    assert restored.increments >= last.link.number >= 3
    assert restored.path == str(base)
