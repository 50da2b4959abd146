"""What tests/fixtures/checkpoint-v1 holds, worked out anew: every row, count, touched id and
variable.

The files were written by two parameter servers of the first release: `save(trained(2), folder)`
writes such a folder. Those that are committed stay as they are: they are what jobs of that release
have on disk.
"""

import numpy as np

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import Variable
from megalith.ps.store.store import Store
from megalith.schema import (
    Adagrad,
    Adam,
    AdmissionConfig,
    FilterKind,
    Fp16,
    Ftrl,
    LinearWarmup,
    PolynomialDecay,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
    Zeros,
)
from megalith.wire import routing

STEP = 120
SAVED_AT_S = 1_790_000_000.25
DATA_TIME_S = 1_789_999_000
USER = TableConfig(
    "user id",
    (
        Segment(1, Zeros(), Ftrl(0.5, initial_accumulator_value=0.25)),
        Segment(2, RandomUniform(-0.5, 0.5), Adam(0.1), compressor=Fp16()),
    ),
    expire_days=30,
    expire_days_by_slot={3: 7},
    touched_capacity=0,
)
ITEM = TableConfig(
    "item",
    (
        Segment(
            3,
            Zeros(),
            Adagrad(0.5),
            schedule=PolynomialDecay(0.5, decay_steps=100, end_learning_rate=0.25),
        ),
    ),
    admission=AdmissionConfig(
        kind=FilterKind.SLIDING, default_threshold=3, threshold_by_slot={5: 2}, capacity=300
    ),
    touched_capacity=1000,
)
TABLES = (USER, ITEM)
IDS = np.arange(-40, 40) * 0x0123456789ABCDE
SEEN_IDS = np.arange(100, 160) * 0x0123456789ABCD7  # without a row: each was seen once or twice
SEEN = np.arange(SEEN_IDS.size) % 2 + 1
VARIABLES = (
    VariableConfig("bias", np.zeros(3, np.float32), Sgd(0.5)),
    VariableConfig("epochs", np.zeros((), np.int64)),
    VariableConfig("tower/w", np.zeros((4, 5), np.float32), Adam(0.1), LinearWarmup(0.1, 50)),
    VariableConfig("wide", np.zeros((164, 200), np.float32), Adagrad(0.1)),  # 131,200 bytes
)


def rows_of(width):
    """The floats of each row, embedding and state."""
    first = np.arange(IDS.size, dtype=np.float32)[:, None]
    return first + np.arange(width, dtype=np.float32) / 8


def times():
    """When each row was updated; all within the seven days of slot 3."""
    return DATA_TIME_S - np.arange(IDS.size, dtype=np.int64)


def array_of(like, number):
    """Another ramp for each field of a variable."""
    ramp = np.arange(like.size, dtype=like.dtype) + number
    return ramp.reshape(like.shape)


def whole(config):
    """(value, state by field) of a variable."""
    value, state = Variable(config).dump()
    fields = {name: array_of(field, 10 + at) for at, (name, field) in enumerate(state.items())}
    return array_of(value, 1), fields


def trained(num_ps):
    """The stores of the servers that hold all of this."""
    owners = routing.even_owners(num_ps)
    current = routing.Routing(1, ("a",) * num_ps, owners)
    stores = [Store(index) for index in range(num_ps)]
    for index, store in enumerate(stores):
        store.route(current, is_initialized=True)
        for config in TABLES:
            store.adopt(table=_table(config, current, index))
    for config in VARIABLES:
        value, state = whole(config)
        for piece in config.split(num_ps):
            part = piece.part
            variable = Variable(piece)
            rows = slice(None) if part is None else slice(part.start, part.stop)
            parts = {name: field[rows] if field.ndim else field for name, field in state.items()}
            variable.load(value[rows] if value.ndim else value, parts)
            number = part.index if part else 0
            owner = routing.part_owner(owners, num_ps, config.name, number)
            stores[owner].adopt(variable=variable)
    return stores


def _table(config, current, index):
    table = EmbeddingTable(config)
    mine = current.owner_of(IDS) == index
    table.load(IDS[mine], rows_of(table.layout.width)[mine], times()[mine], None, DATA_TIME_S)
    if config is ITEM:
        seen = current.owner_of(SEEN_IDS) == index
        table.admission.admit(SEEN_IDS[seen], SEEN[seen])
    return table
