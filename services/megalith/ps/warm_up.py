"""Compile, or load from the cache, the kernels that requests need: the first one must not wait for them."""

from collections.abc import Sequence

import numpy as np

from megalith.ps import batch
from megalith.ps.kernels import ownership
from megalith.ps.table import EmbeddingTable
from megalith.ps.variable import UpdateKind, Variable
from megalith.wire.routing import NUM_BUCKETS, decode_owners
from megalith.wire.schema import (
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


def warm_up(
    optimizers: Sequence[Optimizer] = (Adagrad(),), initializers: Sequence[Initializer] = (Zeros(),)
) -> None:
    """Pull from, push to and save tables of these, with the argument types of real requests: read-only arrays.

    What a table needs beyond that is compiled at its first push, in some seconds, once per machine.
    """
    keys, gradients = np.arange(2, dtype=np.int64), np.ones((2, 2), np.float32)
    spoiled = np.full((2, 2), np.nan, np.float32)
    for array in (keys, gradients, spoiled):
        array.flags.writeable = False
    for optimizer in optimizers:
        for initializer in initializers:
            segments = (Segment(2, initializer, optimizer),)
            table = EmbeddingTable(TableConfig("warm-up", segments, skip_nonfinite=True))
            table.apply_gradients(keys, gradients)
            table.apply_gradients(keys, spoiled, req_time_s=1)
            table.lookup(keys)
            table.dump()
        if isinstance(
            optimizer, Adagrad | Sgd
        ):  # a gradient of a variable comes as another type of array
            variable = Variable(VariableConfig("warm-up", np.zeros(2, np.float32), optimizer))
            variable.apply(UpdateKind.GRADIENT, gradients[0])
    batch.check_distinct(keys, "warm-up")
    ownership.all_owned(keys, decode_owners(bytes(2 * NUM_BUCKETS)), 0)


def warm_up_image() -> None:
    """What a container should not have to compile: the common tables and all that is done to their rows."""
    initializers = (Zeros(), RandomUniform())
    warm_up((Adagrad(), Sgd()), initializers)
    for initializer in initializers:
        table = EmbeddingTable(TableConfig("warm-up", (Segment(2, initializer),)))
        keys, values = np.arange(2, dtype=np.int64), np.ones((2, 2), np.float32)
        keys.flags.writeable = values.flags.writeable = False
        table.assign(keys, values)
        table.assign_add(keys, values)
        table.reinitialize(keys)
        table.load(
            np.arange(1), np.zeros((1, table.layout.width), np.float32), np.zeros(1, np.int64)
        )
        table.expire()
