"""One call with more tables than one system call of the kernel sends."""

import numpy as np
import pytest

import megalith.client as mg
from support.servers import Servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with Servers(tmp_path_factory.mktemp("model"), num_ps=1) as servers:
        servers.start_all()
        yield servers


@pytest.mark.parametrize("count", [600, 1100])
def test_a_push_and_a_pull_of_many_tables_go_through_the_bulk_lane(servers, count):
    names = [f"many-{count}-{number}" for number in range(count)]
    with servers.connect(timeout_s=30.0) as cluster:
        cluster.create_tables(
            *(mg.TableConfig(name, (mg.Segment(16, optimizer=mg.Sgd(1.0)),)) for name in names)
        )
        cluster.push(
            {
                name: ([1, 2], np.repeat(np.float32([[-number], [number]]), 16, 1))
                for number, name in enumerate(names)
            }
        )
        rows = cluster.pull({name: [2, 1] for name in names}).rows
        assert cluster._servers._links._lanes[cluster._servers.routing().addresses[0]] is not None
    for number, name in enumerate(names):
        np.testing.assert_array_equal(rows[name], np.repeat([[-number], [number]], 16, 1))
