import numpy as np
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from megalith.ps.metrics import store_metrics
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients
from megalith.schema import Segment, Sgd, TableConfig, Zeros, table_counts
from megalith.wire import routing
from megalith.wire.routing import Routing


def families(metrics):
    page = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(page)}


def by_table(family):
    return {sample.labels["table"]: sample.value for sample in family.samples}


def test_each_table_has_its_own_figures_and_they_add_up():
    store = Store(0)
    store.route(Routing(1, ("a",), routing.even_owners(1)), True)
    names = ("user", 'a "quoted" name')
    configs = [TableConfig(name, (Segment(2, Zeros(), Sgd()),)) for name in names]
    store.create_tables(1, configs)
    for sequence, (name, num_ids) in enumerate(zip(names, (3, 5), strict=True), 1):
        ids = np.arange(num_ids)
        gradients = TableGradients(name, ids, np.ones((num_ids, 2), np.float32))
        store.push(1, Sender("client", sequence), [gradients], [])

    found = families(store_metrics(store))
    assert by_table(found["megalith_rows"]) == {"user": 3, 'a "quoted" name': 5}
    assert by_table(found["megalith_rows_created"]) == {"user": 3, 'a "quoted" name': 5}
    assert by_table(found["megalith_rows_refused"]) == {"user": 0, 'a "quoted" name': 0}
    bytes_by_table = {table.config.name: table.stats().bytes for table in store.tables()}
    assert by_table(found["megalith_table_bytes"]) == bytes_by_table


def test_a_server_without_tables_says_which_metrics_there_will_be():
    found = families(store_metrics(Store(0)))
    counted = {f"megalith_rows_{name}" for name in table_counts.HELP}
    assert counted | {"megalith_rows", "megalith_table_bytes", "megalith_bytes"} <= set(found)
