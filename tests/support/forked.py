"""What tests/fault/test_fork.py runs, each in a process of its own: `python forked.py <scenario>
<model_dir>`.

A process that runs gRPC servers cannot be forked safely, and pytest's may run some. A scenario ends
with exit status 0, or with the traceback of what was wrong, of a child too.
"""

import faulthandler
import multiprocessing
import os
import sys
import threading
import traceback

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import InvalidRequest

WIDTH = 4
LIMIT_S = 60  # a child that hangs says where, and fails
FORKS = multiprocessing.get_context("fork")


def minus(table_name):
    """A table in which a gradient of -1 adds 1 to a row."""
    return mg.TableConfig(table_name, (mg.Segment(WIDTH, optimizer=mg.Sgd(1.0)),))


def add(cluster, table, ids, value):
    ids = np.asarray(ids)
    cluster.push({table: (ids, np.full((ids.size, WIDTH), -value, np.float32))})


def value_of(cluster, table, row):
    rows = cluster.pull({table: np.array([row])}).rows[table]
    assert (rows == rows[0, 0]).all(), rows
    return float(rows[0, 0])


def forked(work):
    """Run `work` in a forked child that ends without closing anything; its pid."""
    pid = os.fork()
    if pid:
        return pid
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def succeeded(pid):
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"child {pid} ended with {status}"


def row_is_the_sum(model_dir):
    """Child and parent push in turn: 1.0 and 10.0 make 11.0, four times."""
    for turn in range(4):
        with mg.connect(model_dir=model_dir) as cluster:
            cluster.create_tables(minus("turns"))
            add(cluster, "turns", [turn], 0.0)
            succeeded(forked(lambda turn=turn, cluster=cluster: add(cluster, "turns", [turn], 1.0)))
            add(cluster, "turns", [turn], 10.0)
            assert value_of(cluster, "turns", turn) == 11.0, value_of(cluster, "turns", turn)


def pulls_are_each_process_s_own(model_dir, bulk_lane=True):
    """Parent and children pull different rows of one size at once, over what the parent had open
    before the fork."""
    cluster = mg.connect(model_dir=model_dir, bulk_lane=bulk_lane)
    cluster.create_tables(minus("own"))
    ids = np.arange(4000)
    cluster.assign_rows({"own": (ids, np.repeat(ids[:, None], WIDTH, 1).astype(np.float32))})

    def pull_all(first):
        mine = np.arange(first, first + 1000)
        for _ in range(100):
            rows = cluster.pull({"own": mine}).rows["own"]
            np.testing.assert_array_equal(rows, np.repeat(mine[:, None], WIDTH, 1))

    pull_all(0)
    children = [forked(lambda first=first: pull_all(first)) for first in (1000, 2000, 3000)]
    pull_all(0)
    for child in children:
        succeeded(child)
    pull_all(0)


def unary_pulls_are_each_process_s_own(model_dir):
    pulls_are_each_process_s_own(model_dir, bulk_lane=False)


def sums_of_all_processes_are_right(model_dir):
    """Three processes of multiprocessing and the parent push to the same rows at once."""
    cluster = mg.connect(model_dir=model_dir)
    cluster.create_tables(minus("sums"))
    cluster.create_variables(mg.VariableConfig("count", np.zeros(3, np.float32)))
    ids = np.arange(500)
    add(cluster, "sums", ids, 1.0)

    def push_many(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            add(cluster, "sums", random.permutation(ids), 1.0)
            cluster.push(add_to_variables={"count": np.ones(3, np.float32)})
            cluster.pull({"sums": ids})

    children = [FORKS.Process(target=push_many, args=(seed,)) for seed in range(3)]
    for child in children:
        child.start()
    push_many(3)
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode
    pulled = cluster.pull({"sums": ids}, ["count"])
    np.testing.assert_array_equal(pulled.rows["sums"], np.full((500, WIDTH), 201.0))
    np.testing.assert_array_equal(pulled.variables["count"], np.full(3, 200.0))


def forks_beside_busy_threads(model_dir):
    """Threads of the parent are inside calls of all kinds at each of 30 forks.

    Some children leave by sys.exit.
    """
    cluster = mg.connect(model_dir=model_dir)
    cluster.create_tables(minus("busy"))
    ids = np.arange(2000)
    add(cluster, "busy", ids, 1.0)
    pushed = [0, 0]
    is_over = threading.Event()
    errors = []

    def repeat(call):
        try:
            while not is_over.is_set():
                call()
        except BaseException as error:
            errors.append(error)

    def push():
        add(cluster, "busy", ids, 1.0)
        pushed[0] += 1

    def push_rows():  # a unary call
        cluster.add_to_rows({"busy": (ids, np.ones((ids.size, WIDTH), np.float32))})
        pushed[1] += 1

    def pull():
        cluster.pull({"busy": ids})

    calls = (
        push,
        push_rows,
        pull,
        lambda: cluster.begin_pull({"busy": ids}).result(),
        cluster.controller.status,
    )
    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()

    def child_work():
        add(cluster, "busy", ids, 1.0)
        assert (cluster.pull({"busy": ids}).rows["busy"] >= 2.0).all()
        cluster.add_to_rows({"busy": (ids, np.ones((ids.size, WIDTH), np.float32))})
        assert cluster.begin_pull({"busy": ids[:10]}).result().rows["busy"].shape == (10, WIDTH)
        assert cluster.controller.status().phase == "running"

    for turn in range(30):
        if turn % 3:
            succeeded(forked(child_work))
            continue
        child = os.fork()
        if not child:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            child_work()
            sys.exit(0)  # through the end of the interpreter, with everything inherited still there
        succeeded(child)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    expected = 1 + sum(pushed) + 2 * 30
    np.testing.assert_array_equal(
        cluster.pull({"busy": ids}).rows["busy"], np.full((2000, WIDTH), expected)
    )


def what_the_parent_began_is_the_parent_s(model_dir):
    """Begun calls, prefetched batches and cached variables in a child."""
    for bulk_lane in (True, False):
        cluster = mg.connect(model_dir=model_dir, bulk_lane=bulk_lane)
        table = f"begun-{bulk_lane}"
        cluster.create_tables(minus(table))
        cluster.create_variables(mg.VariableConfig(table, np.zeros(2, np.float32)))
        features = cluster.create_features(
            mg.Feature(f"feature-{bulk_lane}", (mg.Slice("all", WIDTH),))
        )
        add(cluster, table, [7], 1.0)
        push = cluster.begin_push({table: (np.array([7]), np.full((1, WIDTH), -10, np.float32))})
        pull = cluster.begin_pull({table: np.array([7])})
        batches = features.prefetch(
            iter([[1], [2], [3]]), lambda ids, name=f"feature-{bulk_lane}": {name: ids}
        )
        next(batches)
        cache = mg.VariableCache(cluster, [table])
        cache.refresh()
        cache.fetch()

        def child_work(
            cluster=cluster,
            table=table,
            push=push,
            pull=pull,
            batches=batches,
            cache=cache,
        ):
            for ask in (push.result, pull.result, lambda: next(batches)):
                with pytest.raises(InvalidRequest, match="forked"):
                    ask()
            cluster.push(add_to_variables={table: np.ones(2, np.float32)})
            add(cluster, table, [7], 100.0)
            cache.refresh()
            assert cache.values[table].tolist() == [1.0, 1.0]
            cluster.close()

        succeeded(forked(child_work))
        push.result()
        assert (pull.result().rows[table] >= 1.0).all()
        assert len(list(batches)) == 2
        assert value_of(cluster, table, 7) == 111.0
        cache.refresh()
        assert cache.values[table].tolist() == [1.0, 1.0]
        cache.close()
        cluster.close()


def work_in_the_background_is_each_process_s_own(model_dir):
    """Items that are read ahead, and calls that are made, belong to the process that began."""
    may_go_on = threading.Event()
    made = []
    calls = mg.BackgroundCalls(depth=2)
    calls.make(may_go_on.wait)
    calls.make(made.append, "parent")
    items = mg.read_ahead(range(10), depth=3)
    assert next(items) == 0

    def child():
        with pytest.raises(InvalidRequest, match="was begun by the process"):
            next(items)
        assert list(mg.read_ahead(range(10), depth=3)) == list(range(10))
        assert calls.is_idle
        calls.make(made.append, "child")
        calls.close()
        assert made == ["child"]

    succeeded(forked(child))
    assert list(items) == list(range(1, 10))
    may_go_on.set()
    calls.close()
    assert made == ["parent"]


def torch_workers_look_up(model_dir):
    """A DataLoader whose workers use the client and the module of the parent, which trains
    meanwhile."""
    import torch

    from megalith.torch import ClusterEmbedding

    cluster = mg.connect(model_dir=model_dir)
    features = cluster.create_features(
        mg.Feature("item", (mg.Slice("all", WIDTH, optimizer=mg.Sgd(1.0)),))
    )
    (table,) = [config.name for config in features.tables]
    ids = np.arange(2000)
    cluster.assign_rows({table: (ids, np.repeat(ids[:, None], WIDTH, 1).astype(np.float32))})
    embedding = ClusterEmbedding(features, pushes_behind=1)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, number):
            mine = np.arange(number * 20, number * 20 + 20)
            with torch.no_grad():
                return mine, embedding({"item": mine})["item"]

    other = np.arange(10_000, 10_020)
    steps = 0
    for mine, rows in torch.utils.data.DataLoader(Rows(), num_workers=2, batch_size=4):
        np.testing.assert_array_equal(rows.numpy(), np.repeat(mine.numpy()[:, :, None], WIDTH, 2))
        (-embedding({"item": other})["item"].sum()).backward()
        steps += 1
    embedding.flush()
    assert steps == 25
    rows = cluster.pull({table: other}).rows[table]
    np.testing.assert_array_equal(rows, np.full((20, WIDTH), 25.0))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
