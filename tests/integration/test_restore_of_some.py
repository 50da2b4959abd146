"""A ps that is replaced restores its part of the model; the others keep what they have learnt."""

import numpy as np
import pytest

from megalith.schema import Segment, Sgd, TableConfig, VariableConfig, Zeros
from support.servers import GRACE_S, Servers
from support.waiting import wait_until

IDS = np.arange(1000)
VARIABLES = [f"v{number}" for number in range(20)]


def create(cluster):
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
    zero = np.zeros(1, np.float32)
    cluster.create_variables(*(VariableConfig(name, zero, Sgd(1.0)) for name in VARIABLES))


def train_once(cluster):
    """Move every row and every variable up by 1."""
    cluster.push(
        {"t": (IDS, np.full((IDS.size, 1), -1, np.float32))},
        variable_gradients={name: [-1.0] for name in VARIABLES},
    )


def read(cluster):
    pulled = cluster.pull({"t": IDS}, variables=VARIABLES)
    return pulled.rows["t"][:, 0], np.array([pulled.variables[name][0] for name in VARIABLES])


def replace(cluster, servers, running, index):
    epoch = cluster.controller.routing().epoch
    running[index].stop(GRACE_S)
    running[index] = servers.start_ps(index)
    wait_until(lambda: cluster.controller.routing().epoch > epoch)


@pytest.mark.golden("G9")
def test_a_job_that_is_restarted_as_a_whole_goes_back_with_all_rows_and_variables(tmp_path):
    """Monolith's case without the monitor: everything that was trained after the save is gone."""
    with Servers(tmp_path, num_ps=2, increment_every_s=0.0) as servers:
        servers.start_all()
        cluster = servers.connect()
        create(cluster)
        train_once(cluster)
        cluster.controller.save()
        train_once(cluster)
        for values in read(cluster):
            np.testing.assert_array_equal(values, np.full(values.size, 2))

    with Servers(tmp_path, num_ps=2, increment_every_s=0.0) as servers:
        servers.start_all()
        for values in read(servers.connect()):
            np.testing.assert_array_equal(values, np.ones(values.size))


@pytest.mark.golden("G9")
def test_a_replaced_ps_restores_its_part_and_the_other_keeps_what_it_learnt(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        running = [servers.start_ps(index) for index in range(2)]
        cluster = servers.connect()
        create(cluster)
        train_once(cluster)
        cluster.controller.save()
        train_once(cluster)

        replace(cluster, servers, running, 0)
        routing = cluster.controller.routing()
        rows, variables = read(cluster)
        owner_by_variable = np.array([routing.owner_of_name(name) for name in VARIABLES])
        np.testing.assert_array_equal(rows, 1 + routing.owner_of(IDS))
        np.testing.assert_array_equal(variables, 1 + owner_by_variable)
        assert 0 < owner_by_variable.sum() < len(VARIABLES), "both have some of them"

        replace(cluster, servers, running, 1)
        rows, variables = read(cluster)
        np.testing.assert_array_equal(rows, np.ones(IDS.size))
        np.testing.assert_array_equal(variables, np.ones(len(VARIABLES)))
