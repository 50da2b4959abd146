"""Restoring a shard: what one ps holds, out of the files of a checkpoint and its increments.

The manifest says which buckets a file is about. A ps restores the rows of its own buckets, whatever
the number of servers that wrote them, and reads only the files that have some.
"""

import logging
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.checkpoint.directory import increments
from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.files import applied as applied_files
from megalith.checkpoint.files import blobs as blob_files
from megalith.checkpoint.files import filters as filter_files
from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.files.applied import AppliedWrites
from megalith.checkpoint.files.variables import SavedVariable
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.layout import arrow_files, manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.restoring import left_out, row_loading
from megalith.checkpoint.starting.choices import EVERYTHING, RestoreChoices, without_tables
from megalith.checkpoint.storage.location import Location, locate
from megalith.checkpoint.storage.parallel import in_parallel
from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.admission.union import FilterState, union_of
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import Variable
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import Bools
from megalith.wire.reports import RestoreReport

logger = logging.getLogger(__name__)


def restore_shard(
    holder: ShardHolder,
    directory: Location,
    owners: NDArray[np.uint16],
    index: int,
    *,
    through: int | None = None,
    over_budget: bool = False,
    choices: RestoreChoices = EVERYTHING,
    all_variables: bool = False,
) -> RestoreReport:
    """Load the rows, variables and blobs whose buckets `index` owns.

    All of them, or an error and nothing.

    Increments are those up to `through`, or all. `choices` says what is left out on purpose; rows
    of tables that are left out are counted. With `all_variables` the holder gets a copy of each
    variable, whoever owns it.

    A file is verified against the manifest before a row of it is used, and so is the number of its
    rows. Rows that are expired at their table's data time are dropped and counted. Rows that a
    memory budget has no room for are a LimitExceeded, unless `over_budget`, or unless one server
    held them all when it saved, because its budget had been lowered since: then the table takes
    them all, and no new ids until there is room.
    """
    started = time.monotonic()
    saved = increments.read_chain(directory, through)
    manifest.check_has_rows(directory, saved.base)
    _check_sizes(saved)

    mine = owners == index
    num_left_out = left_out.count(saved, choices.left_out_tables, mine)
    chain = without_tables(saved, choices.left_out_tables)
    tables, expired = row_loading.load_tables(chain, mine, over_budget)
    rows = sum(len(table) for table in tables.values())
    _check_held(chain, mine, rows + expired)
    counted = _newest_filters(chain)
    filters_reset = _restore_filters(counted.manifest, counted.directory, mine, tables)
    newest = _newest_of(chain)
    dense = _dense_from(choices.dense_from) if choices.dense_from else newest
    if all_variables:
        variables = _restore_variables(dense, np.zeros_like(owners), 0, choices)
    else:
        variables = _restore_variables(dense, owners, index, choices)

    blobs = blob_files.owned(newest.directory, newest.manifest, owners, index)
    applied = _read_applied(newest, mine)

    for table in tables.values():
        holder.adopt(table=table)
    for variable in variables:
        holder.adopt(variable=variable)
    holder.adopt_blobs(blobs)
    if applied is not None:
        holder.adopt_writes(applied)

    restored = RestoreReport(
        path=str(directory),
        step=chain.last.step,
        rows=rows,
        expired=expired,
        left_out=num_left_out,
        seconds=time.monotonic() - started,
        tables=len(tables),
        variables=len(variables),
        saved_at_s=chain.last.saved_at_s,
        filters_reset=filters_reset,
        increments=chain.number,
    )

    logger.info(
        "restored path=%s increments=%d rows=%d expired=%d left_out=%d filters_reset=%d "
        "blobs=%d seconds=%.1f",
        restored.path,
        restored.increments,
        restored.rows,
        restored.expired,
        restored.left_out,
        restored.filters_reset,
        len(blobs),
        restored.seconds,
    )

    return restored


def _check_sizes(chain: Chain) -> None:
    """CheckpointDamaged unless all files of the chain are there, with the length they were."""
    in_parallel(lambda each: manifest.check_size(*each), chain.files, "sizes")


def _newest_of(chain: Chain) -> Increment:
    """What has the variables and blobs: the last increment, or the checkpoint itself."""
    return chain.increments[-1] if chain.increments else Increment(chain.directory, chain.base)


def _dense_from(path: str) -> Increment:
    """The other checkpoint that the variables come from."""
    directory = locate(path)
    content = manifest.read(directory)
    for file in content.files:
        manifest.check_size(directory, file)

    return Increment(directory, content)


def _newest_filters(chain: Chain) -> Increment:
    """What has the counts of admission filters; increments of early versions have none."""
    for increment in reversed(chain.increments):
        if any(file.kind is FileKind.FILTER for file in increment.manifest.files):
            return increment

    return Increment(chain.directory, chain.base)


def _applied_file(newest: Increment, mine: Bools) -> ShardFile | None:
    """What the one server of just these buckets remembered; None if no server had just these."""
    buckets = arrow_files.ranges_of(mine)
    found = []
    for file in newest.manifest.files:
        if file.kind is FileKind.APPLIED and file.buckets == buckets:
            found.append(file)

    return found[0] if len(found) == 1 else None


def _read_applied(newest: Increment, mine: Bools) -> AppliedWrites | None:
    """The pushes that are in what was restored, if one server had all of it and remembered them."""
    file = _applied_file(newest, mine)
    return None if file is None else applied_files.read(newest.directory, file)


def _check_held(chain: Chain, mine: Bools, rows: int) -> None:
    """CheckpointDamaged if the server of these buckets had another number of rows.

    Where the buckets were those of several servers, the sum over all servers is compared instead,
    by the controller.
    """
    newest = _newest_of(chain)
    file = _applied_file(newest, mine)
    if file is None:
        return

    suffix = file.name.removeprefix(f"{FileKind.APPLIED}-")
    held = 0
    for each in newest.manifest.files:
        if each.kind is FileKind.TABLE and each.name.endswith(suffix):
            held += each.held if chain.increments else each.rows

    if rows != held:
        raise CheckpointDamaged(
            f"{chain} gives this ps {rows} rows, expired ones included, and the server that wrote "
            f"the last files had {held}"
        )


class _SavedFilter(NamedTuple):
    """The filter of one server. `state` is None if all of its buckets went to other servers."""

    file: ShardFile
    state: FilterState | None


def _restore_filters(
    content: Manifest, directory: Location, mine: Bools, tables: dict[str, EmbeddingTable]
) -> int:
    """Give tables what their servers had counted.

    Returns how many filters of the files did not fit their tables and were left out.
    """
    saved: dict[str, list[_SavedFilter]] = {}
    saved_tables = {file.table for file in content.files if file.kind is FileKind.TABLE}
    for file in content.files:
        if file.kind != FileKind.FILTER:
            continue

        state = None
        if _is_about(file, mine):
            with arrow_files.verified(directory, file) as reader:
                state = filter_files.read_filter(reader, file.name, mine)

        saved.setdefault(file.table, []).append(_SavedFilter(file, state))

    num_reset = 0

    for name, table in tables.items():
        if not isinstance(table.admission, CountingFilter):
            continue

        if name not in saved and name not in saved_tables:
            continue  # made since the checkpoint: its ids are counted anew

        if name not in saved:
            raise CheckpointDamaged(
                f"the checkpoint has rows of table {name}, but not its admission filter"
            )

        num_reset += _restore_filter(name, table.admission, saved[name], directory)

    return num_reset


def _restore_filter(
    table: str, admission: CountingFilter, saved: list[_SavedFilter], directory: Location
) -> int:
    """Continue with the counts of several servers; how many of their filters do not fit.

    One does not fit if the table's admission changed while it was saved. Then its ids are counted
    anew: counts are not the model.
    """
    expected = tuple(admission.layout)
    fitting = []
    num_reset = 0

    for file, state in saved:
        if state is None:
            continue

        layout = tuple(state["layout"].tolist())
        if layout == expected:
            fitting.append(state)
            continue

        num_reset += 1
        logger.warning(
            "sightings are counted anew, the filter is of other settings: table=%s file=%s "
            "layout=%s expected=%s",
            table,
            directory / file.name,
            layout,
            expected,
        )

    if fitting:
        admission.restore(union_of(fitting))

    return num_reset


def _is_about(file: ShardFile, buckets: Bools) -> bool:
    return bool((arrow_files.buckets_of(file) & buckets).any())


def _restore_variables(
    newest: Increment, owners: NDArray[np.uint16], index: int, choices: RestoreChoices
) -> list[Variable]:
    """The variables and parts of variables that ps `index` holds."""

    def read(file: ShardFile) -> list[SavedVariable]:
        with arrow_files.verified(newest.directory, file) as reader:
            return variable_files.read(reader, file, owners, index, choices)

    files = [file for file in newest.manifest.files if file.kind == FileKind.VARIABLES]
    num_ps = int(owners.max()) + 1
    owned_now = [arrow_files.ranges_of(owners == number) for number in range(num_ps)]
    if [file.buckets for file in files] == owned_now and not choices.old_names:
        # Each file was written by a server that had what one has now, so this server's own has all
        # of its variables. Only the large ones are in parts, and a part is cut out of the whole.
        saved = read(files[index])
        if all(piece.parts == 1 for piece in saved):
            return variable_files.owned(saved, owners, index)

    saved = []
    for file in files:
        saved += read(file)

    return variable_files.owned(saved, owners, index)
