"""Which row of which block is at fault, if a batch has rows of several."""

from collections.abc import Sequence

import pyarrow as pa

from megalith.errors import BadData
from megalith.tasks.input.blocks import read_block
from megalith.tasks.input.examples import DataColumns, Examples, examples_of
from megalith.tasks.input.index import BlockRef
from megalith.worker.input import InputBatch


def examples_of_batch(
    drawn: InputBatch[pa.Table], columns: DataColumns, schema: pa.Schema
) -> Examples:
    """The rows of a batch as examples; BadData names the block of a bad row, and its row there."""
    try:
        return examples_of(drawn.batch, columns, drawn.where)
    except BadData:
        blocks = [origin for origin in drawn.origins if isinstance(origin, BlockRef)]
        _raise_fault(blocks, columns, schema)
        raise


def _raise_fault(blocks: Sequence[BlockRef], columns: DataColumns, schema: pa.Schema) -> None:
    """Rows may be shuffled, so each block is read once more, whole."""
    for block in blocks:
        table = read_block(block.file, block.number, schema)
        examples_of(table, columns, block.where)
