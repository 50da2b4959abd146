"""What a checkpoint keeps of a table besides its rows: the counts of its admission filter.

A filter's file has a row for each used block of the ring (block, elements, cells: see
kernels/admission.py) and, as JSON in the schema's metadata under "megalith", the shape of the
filter and the buckets that its server had. Cells do not name their ids, so a server that has some
of these buckets takes all of the filter, and the union of several (`filter_union`).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.admission.union import FilterState
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import Bools

_META = b"megalith"


def write_filter(
    admission: CountingFilter, table: str, buckets: Bools, directory: Path, name: str
) -> ShardFile:
    """`buckets` are those of this server.

    Blocks are copied one at a time, while sightings are counted on.
    """
    state = admission.state()
    blocks = state["blocks"]
    about = {
        "layout": state["layout"].tolist(),
        "counters": state["counters"].tolist(),
        "buckets": np.packbits(buckets).tobytes().hex(),
    }

    columns = {
        "block": pa.array(blocks),
        "elements": pa.array(state["elements"][blocks]),
        "cells": _lists(state["cells"]),
    }

    return _write(columns, about, directory, name, table)


def read_filter(reader: Any, name: str, buckets: Bools) -> FilterState | None:
    """The state that `CountingFilter.restore` takes; None if its server had none of `buckets`."""
    try:
        about = json.loads(reader.schema.metadata[_META])
        packed = np.frombuffer(bytes.fromhex(about["buckets"]), np.uint8)
        written_by = np.unpackbits(packed).astype(np.bool_)

        if not (written_by & buckets).any():
            return None

        content = reader.read_all().combine_chunks()
        blocks = content.column("block").to_numpy()
        layout = np.array(about["layout"], np.int64)
        elements = np.zeros(layout[0], np.int64)
        elements[blocks] = content.column("elements").to_numpy()

        # An empty table has no chunk to look into, and `flatten` gives its type.
        all_cells = content.column("cells").combine_chunks().flatten().to_numpy()
        cells = all_cells.reshape(len(blocks), layout[3])
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise CheckpointDamaged(
            f"{name} is not the state of an admission filter: {error}"
        ) from error

    counters = np.array(about["counters"], np.int64)
    return {
        "layout": layout,
        "counters": counters,
        "elements": elements,
        "blocks": blocks,
        "cells": cells,
    }


def _write(
    columns: dict[str, pa.Array],
    about: dict[str, Any],
    directory: Path,
    name: str,
    table: str,
) -> ShardFile:
    batch = pa.record_batch(columns)
    schema = batch.schema.with_metadata({_META: json.dumps(about)})

    path = directory / name
    # A filter that is not full is mostly zeros.
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema, options=options) as writer,
    ):
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))

    return arrow_files.written(path, FileKind.FILTER, table, batch.num_rows)


def _lists(cells: NDArray[Any]) -> pa.Array:
    """A list for each row of a matrix.

    Its offsets have 64 bits, because a block may have more than 2^31 cells.
    """
    length = cells.shape[1]
    offsets = np.arange(len(cells) + 1) * length
    values = cells.reshape(-1)

    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
