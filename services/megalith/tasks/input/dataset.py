"""A data set as numbered batches: any worker can make any batch, and reads only its blocks."""

import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from megalith.errors import BadData
from megalith.tasks.input.blocks import IndexedFile, read_block, schema_of
from megalith.tasks.input.examples import DataColumns, Examples, examples_of, joined, taken
from megalith.tasks.input.index import BlockRef, DataIndex
from megalith.tasks.input.numbering import Numbering, Stretch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExampleBatch:
    """Examples, and where they are from, for messages."""

    examples: Examples
    where: str


@dataclass(frozen=True, slots=True)
class _HeldBlock:
    number: int
    epoch: int
    examples: Examples


class Dataset:
    """Batches of a data set by number. Not for several threads.

    With a `shuffle_seed` the order of blocks, and of the rows within a block, is another one in
    each epoch, decided by the seed; without one it is that of the files. One block of each track
    that is read is kept in memory.
    """

    def __init__(
        self,
        index: DataIndex,
        columns: DataColumns,
        *,
        batch_size: int,
        num_tracks: int = 1,
        shuffle_seed: int | None = None,
        text_columns: tuple[str, ...] = (),
    ) -> None:
        self._blocks = index.blocks
        self._columns = columns
        self._shuffle_seed = shuffle_seed
        self.schema = common_schema(index, columns, text_columns)
        self._numbering = Numbering(
            [block.num_rows for block in self._blocks], batch_size, num_tracks, shuffle_seed
        )
        self._held: dict[int, _HeldBlock] = {}  # by track

    @property
    def batches_per_epoch(self) -> int:
        return self._numbering.batches_per_epoch

    def batch(self, number: int) -> ExampleBatch:
        epoch = number // self.batches_per_epoch
        stretches = self._numbering.batch(number)
        parts = [self._rows(stretch, epoch) for stretch in stretches]
        where = self._blocks[stretches[0].block].where
        return ExampleBatch(joined(parts), where)

    def first_block(self) -> Examples:
        """A sample of the data, for statistics."""
        return self._read(self._blocks[0])

    def _rows(self, stretch: Stretch, epoch: int) -> Examples:
        block = stretch.block
        held = self._held.get(stretch.track)
        if held is None or held.number != block or held.epoch != epoch:
            held = _HeldBlock(block, epoch, self._ordered(block, epoch))
            self._held[stretch.track] = held

        rows = np.arange(stretch.start, stretch.stop)
        return taken(held.examples, rows)

    def _ordered(self, number: int, epoch: int) -> Examples:
        examples = self._read(self._blocks[number])
        if self._shuffle_seed is None:
            return examples

        rng = np.random.default_rng([self._shuffle_seed, epoch, number])
        order = rng.permutation(len(examples))
        return taken(examples, order)

    def _read(self, block: BlockRef) -> Examples:
        table = read_block(block.file, block.number, self.schema)
        examples = examples_of(table, self._columns, block.where)
        missing = int(examples.missing.sum())
        if missing:
            logger.info("missing values=%d rows=%d in %s", missing, len(examples), block.where)

        return examples


def common_schema(
    index: DataIndex, columns: DataColumns, text_columns: tuple[str, ...] = ()
) -> pa.Schema:
    """The columns that are read, with the types that they have in all files.

    BadData if a file lacks one, or has ids of another kind there: the number 5 and the text "5" are
    two ids.
    """
    first = index.files[0]
    schema = _read_schema(first, columns, text_columns)
    for file in index.files[1:]:
        other = _read_schema(file, columns, text_columns)
        for field in schema:
            kind = other.field(field.name).type
            if _family(kind) != _family(field.type):
                raise BadData(
                    f"{file.path}: column {field.name} is {kind}, but {field.type} in {first.path}"
                )

    return schema


def _read_schema(
    file: IndexedFile, columns: DataColumns, text_columns: tuple[str, ...]
) -> pa.Schema:
    schema = schema_of(file, text_columns)
    columns.check(schema, file.path)
    return pa.schema([schema.field(name) for name in columns.names])


def _family(kind: pa.DataType) -> str:
    """Types whose equal values are the same ids."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list of {_family(kind.value_type)}"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "number"
    return str(kind)
