"""What tables hold after a real save and a start of new servers."""

import numpy as np
import pytest

from megalith.client import Adagrad, Segment, Sgd, TableConfig, Zeros
from support.servers import Servers

NOW_S = 1_700_000_000
FORGOTTEN, KEPT = 1 << 48, 2 << 48  # ids of the slots 1 and 2


def start(model_dir):
    servers = Servers(model_dir, num_ps=2)
    servers.start_all()
    return servers


def plain(name, dim):
    return TableConfig(name, (Segment(dim, Zeros(), Sgd(1.0)),))


def pull(cluster, name, ids):
    return cluster.pull({name: ids}).rows[name]


@pytest.mark.golden("Extra.expire")
def test_rows_of_a_slot_of_0_days_are_gone_after_a_restart_and_those_of_1_day_stay(tmp_path):
    # One step from 0 with a sum of squares of 1 + 1: -0.002 / sqrt(2).
    row = Segment(5, Zeros(), Adagrad(0.002, initial_accumulator_value=1.0))
    config = TableConfig("t", (row,), expire_days_by_slot={1: 0, 2: 1})
    ids = np.array([FORGOTTEN, KEPT])
    trained = np.full((2, 5), -0.001414, np.float32)
    with start(tmp_path) as servers:
        cluster = servers.connect()
        cluster.create_tables(config)
        cluster.push({"t": (ids, np.ones((2, 5), np.float32))}, req_time_s=NOW_S)
        np.testing.assert_allclose(pull(cluster, "t", ids), trained, atol=1e-6)
        cluster.controller.save()

    with start(tmp_path) as servers:
        cluster = servers.connect()
        rows = pull(cluster, "t", ids)
        np.testing.assert_array_equal(rows[0], np.zeros(5))
        np.testing.assert_allclose(rows[1], trained[1], atol=1e-6)
        counts = cluster.table_stats()["t"]
        assert (counts.rows, counts.expired) == (1, 1)


@pytest.mark.golden("Extra.multi_table")
def test_tables_that_two_programs_share_keep_their_rows_and_a_later_change_is_undone(tmp_path):
    ids = np.arange(1000)
    with start(tmp_path) as servers:
        cluster = servers.connect()
        cluster.create_tables(plain("shared", 2), plain("old", 1))
        cluster.push({"shared": (ids, -np.ones((1000, 2), np.float32))})
        cluster.push({"old": (ids, -np.ones((1000, 1), np.float32))})
        cluster.controller.save()
        cluster.push({"shared": (ids, -np.ones((1000, 2), np.float32))})
        np.testing.assert_array_equal(pull(cluster, "shared", ids), np.full((1000, 2), 2))

    with start(tmp_path) as servers:
        cluster = servers.connect()
        cluster.create_tables(plain("shared", 2), plain("new", 3))
        np.testing.assert_array_equal(pull(cluster, "shared", ids), np.ones((1000, 2)))
        np.testing.assert_array_equal(pull(cluster, "new", ids), np.zeros((1000, 3)))
        cluster.push({"shared": (ids, -np.ones((1000, 2), np.float32))})
        np.testing.assert_array_equal(pull(cluster, "shared", ids), np.full((1000, 2), 2))
