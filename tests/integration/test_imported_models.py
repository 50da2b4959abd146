"""A job starts from a model that was imported from Monolith's files, and trains it on."""

import numpy as np

from megalith.checkpoint.monolith.importing import import_tables
from megalith.client import Adagrad, Ftrl, Segment, TableConfig
from support import monolith_files
from support.servers import Servers

RATE = 0.5


def test_a_job_goes_on_from_an_imported_model_with_its_own_settings(tmp_path):
    """The files do not say how fast a segment learns: the program does."""
    assets = tmp_path / "old" / "model.ckpt-120.assets"
    entries = []
    for number in range(1000):
        states = [
            ("ftrl", {"zero": [0.0], "norm": [1.0]}),
            ("adagrad", {"norm": [4.0, 9.0]}),
        ]
        values = [0.0, float(number), -float(number)]
        entries.append(monolith_files.entry(number, values, states, 1_790_000_000))

    monolith_files.write_tables(assets, [[("item", 1000, monolith_files.records(entries))]], ps=0)
    model_dir = tmp_path / "model"
    import_tables(assets, model_dir)

    config = TableConfig(
        "item", (Segment(1, optimizer=Ftrl(0.1)), Segment(2, optimizer=Adagrad(RATE)))
    )
    ids = np.arange(1000)
    with Servers(model_dir, num_ps=3) as servers:
        servers.start_all()
        cluster = servers.connect()
        assert cluster.controller.status().global_step == 120
        cluster.create_tables(config)
        before = cluster.pull({"item": ids}).rows["item"]
        cluster.push({"item": (ids, np.ones((1000, 3), np.float32))})
        after = cluster.pull({"item": ids}).rows["item"]
        saved = cluster.controller.save()

    expected = np.stack([np.zeros(1000), ids, -ids], axis=1).astype(np.float32)
    np.testing.assert_array_equal(before, expected)
    steps = RATE / np.sqrt(np.array([4 + 1, 9 + 1], np.float32))
    np.testing.assert_allclose(after[:, 1:], expected[:, 1:] - steps, rtol=1e-6)
    assert saved.rows == 1000
