"""Small tables and their arguments, as Monolith's own tests have them."""

import numpy as np

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.kernels.dtypes import F32, I64
from megalith.schema import Segment, Sgd, TableConfig, Zeros


def ids(*values: int) -> I64:
    return np.array(values, np.int64)


def column(*values: float) -> F32:
    return np.array(values, np.float32).reshape(-1, 1)


def sgd_table(dim: int = 1, **settings: object) -> EmbeddingTable:
    return EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), Sgd()),), **settings))  # type: ignore[arg-type]
