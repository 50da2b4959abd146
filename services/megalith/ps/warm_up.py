"""Compiles the kernels that requests need, or loads them from the cache.

The first request must not wait for that.
"""

from collections.abc import Sequence

import numpy as np

from megalith.checkpoint.files.row_groups import RowGroups
from megalith.checkpoint.files.tables import RowBatch
from megalith.checkpoint.restoring import own_rows
from megalith.engine.kernels import ownership
from megalith.engine.table import checks
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.schema import (
    Adagrad,
    Initializer,
    Optimizer,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
    Zeros,
)
from megalith.wire.routing import NUM_BUCKETS, decode_owners


def warm_up(
    optimizers: Sequence[Optimizer] = (Adagrad(),), initializers: Sequence[Initializer] = (Zeros(),)
) -> None:
    """Pull from, push to and save tables of these, with read-only arrays as in real requests.

    What a table needs beyond that is compiled at its first push, in some seconds, once per machine.
    """
    ids = np.arange(2, dtype=np.int64)
    gradients = np.ones((2, 2), np.float32)
    spoiled = np.full((2, 2), np.nan, np.float32)
    for array in (ids, gradients, spoiled):
        array.flags.writeable = False

    for optimizer in optimizers:
        for initializer in initializers:
            segments = (Segment(2, initializer, optimizer),)
            config = TableConfig("warm-up", segments, skip_nonfinite=True)
            table = EmbeddingTable(config)

            table.apply_gradients(ids, gradients)
            table.apply_gradients(ids, spoiled, req_time_s=1)
            table.lookup(ids)
            chunk = table.dump()
            has_rows = np.zeros(NUM_BUCKETS, np.bool_)
            RowGroups(table.layout).add(
                chunk.ids, chunk.rows, chunk.times, has_rows
            )  # as a save does

        if isinstance(optimizer, Adagrad | Sgd):
            # A gradient of a variable comes as another type of array
            zeros = np.zeros(2, np.float32)
            variable = Variable(VariableConfig("warm-up", zeros, optimizer))
            variable.apply(UpdateKind.GRADIENT, gradients[0])

    checks.check_distinct(ids, "warm-up")

    owners = decode_owners(bytes(2 * NUM_BUCKETS))
    ownership.all_owned(ids, owners, 0)


def warm_up_image() -> None:
    """Compile what a container should find ready: common tables, and all that is done to rows."""
    initializers = (Zeros(), RandomUniform())
    warm_up((Adagrad(), Sgd()), initializers)

    ids = np.arange(2, dtype=np.int64)
    values = np.ones((2, 2), np.float32)
    ids.flags.writeable = False
    values.flags.writeable = False

    for initializer in initializers:
        segments = (Segment(2, initializer),)
        config = TableConfig("warm-up", segments)
        table = EmbeddingTable(config)

        table.assign(ids, values)
        table.assign_add(ids, values)
        table.reinitialize(ids)

        table.expire()
        load_saved_row(config)


def load_saved_row(config: TableConfig) -> None:
    """Load a row as it comes out of a file, which compiles what a restore needs."""
    table = EmbeddingTable(config)
    table.expect(1)

    ids = np.zeros(1, np.int64)
    times = np.ones(1, np.int64)
    dim = table.layout.dim
    embeddings = np.zeros((1, dim), np.float32)
    states = np.zeros((1, table.layout.width - dim), np.float32)
    saved = RowBatch(ids, embeddings, states, times)

    mine = np.ones(NUM_BUCKETS, np.bool_)
    own = own_rows.joined(saved, mine)
    checks.check_finite(checks.frozen(own.rows), config.name, "rows")
    table.load(own.ids, own.rows, own.times, drop_expired=True)
    table.load_new(*saved, table.layout.signature, 1)
