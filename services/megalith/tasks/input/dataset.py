"""A data set as numbered batches: any worker can make any batch, and reads only its blocks."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from megalith.tasks.input.blocks import read_block
from megalith.tasks.input.examples import (
    F32,
    DataColumns,
    Examples,
    dense_of,
    examples_of,
    joined,
    taken,
)
from megalith.tasks.input.index import BlockRef, DataIndex
from megalith.tasks.input.numbering import Numbering, Stretch
from megalith.tasks.input.pieced_tables import PiecedBlocks
from megalith.tasks.input.schemas import (
    check_alike,
    columns_of,
    with_trained_numbers,
    with_values,
    with_wide_numbers,
)

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
    that is read is kept in memory. `kinds` are those that the model is trained on.
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
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self._index = index
        self._blocks = index.blocks
        self._batch_size = batch_size

        self._columns = columns
        self._shuffle_seed = shuffle_seed
        self.schema = common_schema(index, columns, text_columns, kinds)

        num_rows = [block.num_rows for block in self._blocks]
        self._numbering = Numbering(num_rows, batch_size, num_tracks, shuffle_seed)
        self._held: dict[int, _HeldBlock] = {}  # by track

        numbered_by = f"{index.digest} {batch_size} {num_tracks} {shuffle_seed}"
        digest = hashlib.sha256(numbered_by.encode()).hexdigest()
        self.digest = digest[:12]  # the same where a number has the same examples

    @property
    def batches_per_epoch(self) -> int:
        return self._numbering.batches_per_epoch

    def batch(self, number: int) -> ExampleBatch:
        epoch = number // self.batches_per_epoch
        stretches = self._numbering.batch(number)
        parts = [self._rows(stretch, epoch) for stretch in stretches]
        examples = joined(parts)

        first_block = self._blocks[stretches[0].block]
        return ExampleBatch(examples, first_block.where)

    def pieces(self, epochs: int) -> PiecedBlocks:
        """The same rows, if the controller hands out the blocks."""
        return PiecedBlocks(
            self._index,
            self.schema,
            batch_size=self._batch_size,
            epochs=epochs,
            shuffle_seed=self._shuffle_seed,
        )

    def first_block(self) -> Examples:
        """A sample of the data."""
        return self._read(self._blocks[0])

    def first_dense(self, most: int) -> Iterator[F32]:
        """The dense columns of the first blocks, for statistics.

        Each is read when it is asked for, and nothing else of its block: ids take most of the time.
        """
        names = {column.column for column in self._columns.dense}
        schema = pa.schema([field for field in self.schema if field.name in names])
        for block in self._blocks[:most]:
            table = read_block(block.file, block.number, schema)
            yield dense_of(table, self._columns, block.where)

    def _rows(self, stretch: Stretch, epoch: int) -> Examples:
        block = stretch.block
        held = self._held.get(stretch.track)
        if held is None or held.number != block or held.epoch != epoch:
            examples = self._ordered(block, epoch)
            held = _HeldBlock(block, epoch, examples)
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
        lacking = examples.missing_by_column

        if lacking:
            columns = ", ".join(f"{name} {count}" for name, count in lacking.items())
            logger.info(
                "missing values=%d rows=%d in %s: %s",
                sum(lacking.values()),
                len(examples),
                block.where,
                columns,
            )

        return examples


def common_schema(
    index: DataIndex,
    columns: DataColumns,
    text_columns: tuple[str, ...] = (),
    kinds: Mapping[str, str] | None = None,
) -> pa.Schema:
    """The columns that are read, with the types that they have in all files, or BadData.

    Where the first file has no values, `kinds` say what they would be.
    """
    # A text file without rows does not show the types of its columns.
    first = next((file for file in index.files if sum(file.rows)), index.files[0])
    schema = columns_of(first, columns.names, text_columns)
    schema = with_values(schema, index.files, text_columns)

    if first.is_text:
        schema = with_wide_numbers(schema, columns.numbers)
        schema = with_trained_numbers(schema, columns.ids, kinds or {})

    for file in index.files:
        check_alike(file, schema, text_columns, first.path)

    return schema
