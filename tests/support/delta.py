"""Reading the delta log of a table, as the only one who seals its sets."""

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.kernels.dtypes import I64


def take_changes(table: EmbeddingTable) -> I64:
    """The ids that changed since the last call, in rising order."""
    log = table.changes
    last = log.newest
    log.seal()
    return log.read(last)
