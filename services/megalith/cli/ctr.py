"""`megalith train ctr`: a click model on the user's own columns, without any code."""

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from megalith.cli import jobs
from megalith.cli.output import print_line
from megalith.errors import MegalithError
from megalith.runner.config import PREFIX, RunnerConfig
from megalith.runtime.command_line import SettingsCommand
from megalith.runtime.files import prepare_model_dir
from megalith.tasks.ctr_options import CtrOptions, names
from megalith.tasks.input.dataset import Dataset, common_schema
from megalith.tasks.input.examples import DataColumns
from megalith.tasks.input.index import DataIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class CtrJob:
    """The model and its data, and the job that trains it."""

    ctr: CtrOptions
    job: RunnerConfig


def _train_ctr(settings: CtrJob) -> int:
    console = Console()
    try:
        job = prepared(settings, console)
    except MegalithError as error:
        jobs.fail_job(error)

    return jobs.train_to_the_end(job, console)


def prepared(settings: CtrJob, console: Console) -> RunnerConfig:
    """The job with what its workers are told, after the data was looked at and shown."""
    options = settings.ctr
    job = settings.job
    columns = options.columns()
    text_columns = tuple(names(options.text))
    index = _counted(options.data, console)
    _show(columns, common_schema(index, columns, text_columns), console)
    _check_first_block(index, columns, text_columns)

    model_dir = prepare_model_dir(job.model_dir)
    told: dict[str, Any] = dataclasses.asdict(options)
    told["num_tracks"] = job.num_workers
    index_path = index.save_in(model_dir)
    told["index"] = str(index_path)
    if options.eval_data:
        eval_index = _counted(options.eval_data, console)
        sliced = dataclasses.replace(columns, slices=tuple(names(options.slice_by)))
        _check_first_block(eval_index, sliced, text_columns)
        told["eval_index"] = str(eval_index.save_in(model_dir))

    if options.time:
        _say_expiry(options, console)

    return dataclasses.replace(
        job,
        task="ctr",
        task_options=json.dumps(told),
        # Which rows a batch has is decided by these.
        input_name=f"{index_path.stem}, {job.num_workers} workers, batches of {job.batch_size}",
    )


def _check_first_block(
    index: DataIndex, columns: DataColumns, text_columns: tuple[str, ...]
) -> None:
    """BadData if its values are not what they are used as: before any process is started."""
    Dataset(index, columns, batch_size=1, text_columns=text_columns).first_block()


def _counted(patterns: str, console: Console) -> DataIndex:
    started = time.monotonic()
    index = DataIndex.build(names(patterns))
    took_s = time.monotonic() - started
    print_line(
        console,
        f"{patterns}: {len(index.files):,} files, {index.num_rows:,} rows "
        f"in {len(index.blocks):,} blocks, counted in {took_s:.1f} s",
    )
    return index


def _show(columns: DataColumns, schema: pa.Schema, console: Console) -> None:
    """The columns that are read, and what becomes of each."""
    table = Table(box=None, pad_edge=False)
    for heading in ("column", "type", "used as"):
        table.add_column(heading)

    for name, use in _uses(columns):
        table.add_row(name, str(schema.field(name).type), use)

    console.print(table)


def _uses(columns: DataColumns) -> Sequence[tuple[str, str]]:
    label = columns.label
    comparison = f" {label.operator} {label.number:g}" if label.operator else ""
    uses = [(label.column, f"label{comparison}")]
    for column in columns.ids:
        use = "list of ids" if column.is_list else "ids"
        if column.table != column.column:
            use += f", rows of {column.table}"

        uses.append((column.column, use))

    for dense in columns.dense:
        uses.append((dense.column, "number, logarithm" if dense.is_log else "number"))

    if columns.time is not None:
        uses.append((columns.time.column, "time of the rows' last update"))

    return uses


def _say_expiry(options: CtrOptions, console: Console) -> None:
    if not options.expire_days:
        print_line(console, "rows do not expire; --expire-days 30 drops those unused for 30 days")


def _defaults() -> dict[str, Any]:
    return jobs.train_defaults() | {"num_examples": 0}


train_ctr = SettingsCommand(
    "ctr",
    CtrJob,
    _train_ctr,
    prefix=PREFIX,
    help="Train a click model on columns of Parquet, CSV or TSV files, without any code.",
    first=("data", "label", "features", "eval_data", "model"),
    examples=(
        "megalith train ctr --data 'clicks/*.parquet' --label click --features user,item,city \\",
        "    --lists history:item --dense price,age --time ts --eval-data day7.parquet",
    ),
    defaults=_defaults,
    shown={"model_dir": jobs.SHOWN_MODEL_DIR},
)
