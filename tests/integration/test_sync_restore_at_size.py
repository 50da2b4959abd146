"""A checkpoint of two ranks, with tables that have grown several times, at other numbers of ranks."""

import numpy as np
import pytest

from megalith.checkpoint.restoring.restore import restore_shard
from megalith.cli.ckpt import ckpt
from megalith.client import Ids
from megalith.local import LocalModel
from megalith.local.saving import save
from megalith.sync.model import RankModel
from megalith.wire.routing import even_owners
from support.at_size import TABLE, gradients_of, ids_in
from support.thread_ranks import all_of, on_ranks

COUNT = 300_000
DENSE = ()


def pushed(model, ids, gradients, rank, size):
    """Each rank teaches its share of the ids, twice."""
    mine = slice(rank, None, size)
    for _ in range(2):
        batch = {TABLE.name: Ids(ids[mine], distinct=True)}
        model.read(batch, [])
        model.push({TABLE.name: (batch[TABLE.name], np.ascontiguousarray(gradients[mine]))}, {})


def entries(model, ids):
    return model._tables[TABLE.name].lookup_entry(ids)


@pytest.mark.parametrize(
    "order",
    [
        "random",
        "sorted",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("clustered", "adversarial")),
    ],
)
def test_all_rows_and_their_state_come_back_at_any_number_of_ranks(tmp_path, order):
    ids = ids_in(order, COUNT)
    gradients = gradients_of(COUNT)
    expected = LocalModel()
    expected.create([TABLE], [])
    pushed(expected, ids, gradients, 0, 1)

    def train(ranks):
        model = RankModel(ranks)
        model.create([TABLE], [])
        pushed(model, ids, gradients, ranks.index, ranks.count)
        return save(model, tmp_path, 1, b"", ranks), model.rows_by_table()

    saved = all_of(on_ranks(2, train))
    checkpoint, rows = saved[0]
    assert rows == {TABLE.name: COUNT}
    assert ckpt.main(["verify", str(tmp_path)], standalone_mode=False) in (0, None)

    def restored(ranks):
        model = RankModel(ranks)
        model.restore(checkpoint)
        values, _ = model.read({TABLE.name: Ids(ids, distinct=True)}, [])
        owned = np.isin(
            np.arange(COUNT), np.flatnonzero(model._routing.owner_of(ids) == ranks.index)
        )
        assert len(model._tables[TABLE.name]) == owned.sum()
        check_state(model, expected, ids[owned])
        return values[TABLE.name]

    wanted = expected.read({TABLE.name: ids}, [])[0][TABLE.name]
    for size in (1, 2, 3):
        for values in all_of(on_ranks(size, restored)):
            np.testing.assert_array_equal(values, wanted)

    alone = LocalModel()
    alone.restore(checkpoint)
    assert alone.num_rows == COUNT
    check_state(alone, expected, ids)

    num_rows = 0
    for index in range(4):  # as four ps would
        shard = LocalModel()
        num_rows += restore_shard(shard, checkpoint, even_owners(4), index).rows
    assert num_rows == COUNT


def check_state(model, expected, ids):
    ours = entries(model, ids)
    theirs = entries(expected, ids)
    np.testing.assert_array_equal(ours.values, theirs.values)
    np.testing.assert_array_equal(ours.state, theirs.state)
