"""Holds goldens of Monolith's restore for serving; no process calls it.

A checkpoint as a server stores it that has only files, and judges for itself which rows are
expired: embeddings only, without what trains them. Replicas start from a checkpoint by
served_rows.py instead, as the parameter servers hold it.
"""

import logging
from dataclasses import dataclass, field

import numpy as np

from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage.location import Location
from megalith.engine.serving_table import ServingTable
from megalith.engine.table.checks import finite_mask, frozen
from megalith.engine.table.expiry import Expiry, dated

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedTables:
    """All tables of a checkpoint, by name, and how many rows of each are not in them.

    `expired`: too old at the table's data time. `not_finite`: a weight is NaN or infinite, so that
    nothing could be computed with the row. `refused`: the table's memory budget has no room. An id
    without a row is served as zeros.
    """

    tables: dict[str, ServingTable] = field(default_factory=dict)
    expired: dict[str, int] = field(default_factory=dict)
    not_finite: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)


def load_for_serving(directory: Location, *, skip_zero_embedding: bool = False) -> ServedTables:
    """All tables of a checkpoint without expired rows and such as cannot be served.

    Every file is verified.
    """
    content = manifest.read(directory)
    manifest.check_has_rows(directory, content)
    files = [file for file in content.files if file.kind is FileKind.TABLE]

    headers: dict[str, table_files.Header] = {}
    for file in files:
        headers[file.name] = table_files.header(directory, file)

    data_times = table_files.newest(headers, files)
    served = ServedTables()

    for file in files:
        config = headers[file.name].config
        name = config.name

        if name not in served.tables:
            table = ServingTable(config, skip_zero_embedding=skip_zero_embedding)
            served.tables[name] = table
            served.expired[name] = 0
            served.not_finite[name] = 0
            served.refused[name] = 0

        now_s = data_times.get(file.table, 0)
        expiry = Expiry(config)

        for batch in table_files.row_batches(directory, file):
            is_expired = expiry.expired(batch.ids, batch.times, now_s)
            is_kept = ~is_expired

            is_finite = finite_mask(frozen(batch.embeddings))
            if is_finite is not None:
                is_kept &= is_finite

            ids = batch.ids[is_kept]
            embeddings = batch.embeddings[is_kept]
            times = dated(batch.times[is_kept], now_s)
            refused = served.tables[name].upsert(ids, embeddings, times)

            # A row that is both expired and not finite counts as expired.
            num_expired = int(np.count_nonzero(is_expired))
            num_left = is_kept.size - num_expired
            served.expired[name] += num_expired
            served.not_finite[name] += num_left - ids.size
            served.refused[name] += refused

    _say_left_out(served, directory)
    return served


def _say_left_out(served: ServedTables, directory: Location) -> None:
    for name in served.tables:
        not_finite = served.not_finite[name]
        refused = served.refused[name]
        if not_finite or refused:
            logger.warning(
                "rows are not served: table=%s not_finite=%d refused=%d checkpoint=%s",
                name,
                not_finite,
                refused,
                directory,
            )
