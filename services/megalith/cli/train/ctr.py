"""`megalith train ctr`: a click model on the user's own columns, without any code."""

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from megalith.checkpoint.directory import catalog
from megalith.cli.runs.recorded_task import recorded_task
from megalith.cli.runs.run_record import SETTINGS
from megalith.cli.screen.output import print_line
from megalith.cli.train import jobs
from megalith.cli.train.sync_job import OFF, train_together
from megalith.errors import MegalithError
from megalith.runner.config import PREFIX, RunnerConfig
from megalith.runtime.config.command_line import SettingsCommand
from megalith.runtime.counting import counted
from megalith.runtime.files import prepare_model_dir
from megalith.tasks.ctr_options import CtrOptions, names, options_of
from megalith.tasks.ctr_stream import sample_file
from megalith.tasks.input.dataset import Dataset, common_schema
from megalith.tasks.input.empty_columns import empty_columns
from megalith.tasks.input.examples import DataColumns, Examples
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.kafka import TopicAddress
from megalith.tasks.input.schemas import check_kinds, kinds_of, text_among
from megalith.tasks.input.windows import Window, left_out
from megalith.worker.config import TaskSettings
from megalith.worker.task import DYNAMIC

# Smaller than for other tasks: a model that sees a million examples once learns more in twice the
# steps, and steps that overlap harm it less. docs/own-data.md has figures.
_BATCH_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CtrJob:
    """The model and its data, and the job that trains it."""

    ctr: CtrOptions
    job: RunnerConfig


def _train_ctr(settings: CtrJob) -> int:
    if settings.job.sync != OFF:
        return train_together(
            settings.job,
            lambda job, console: prepared(dataclasses.replace(settings, job=job), console),
        )

    console = Console()
    try:
        job = prepared(settings, console)
    except MegalithError as error:
        jobs.fail_job(error)

    return jobs.train_to_the_end(job, console)


def prepared(settings: CtrJob, console: Console) -> RunnerConfig:
    """The job with what its workers are told, after the data was looked at and shown."""
    job = settings.job
    options = _overridden(settings.ctr, job)
    columns = options.columns()

    trained = _trained_kinds(Path(job.model_dir))
    text_columns = text_among(trained, names(options.text))
    index = _known(options, job, console)

    schema = common_schema(index, columns, text_columns, trained)
    _show(columns, schema, console)
    check_kinds(options.data, schema, columns.ids, trained)
    first = _checked_first_block(index, columns, text_columns, trained)
    _say_doubtful_times(columns, schema, first, console)
    _say_empty_columns(index, columns, console)

    model_dir = prepare_model_dir(job.model_dir)
    kinds = trained | kinds_of(schema, columns.ids)
    text_columns = text_among(kinds, text_columns)
    index_path = index.save_in(model_dir)

    told: dict[str, Any] = dataclasses.asdict(options)
    told["num_tracks"] = job.num_workers
    told["threads"] = options.threads or _threads(job.num_workers)
    told["index"] = str(index_path)
    told["kinds"] = kinds

    if options.eval_data:
        eval_index = _counted(options.eval_data, options, console)

        groups = tuple(names(options.group_by))
        grouped = dataclasses.replace(columns, groups=groups)
        eval_schema = common_schema(eval_index, grouped, text_columns, kinds)

        check_kinds(options.eval_data, eval_schema, columns.ids, kinds)
        _checked_first_block(eval_index, grouped, text_columns, kinds)
        _say_empty_columns(eval_index, columns, console)
        told["eval_index"] = str(eval_index.save_in(model_dir))

    elif options.group_by:
        print_line(console, "--group-by has no effect, because there is no --eval-data")

    if options.time:
        _say_expiry(options, console)

    return dataclasses.replace(
        job,
        task="ctr",
        task_options=json.dumps(told),
        input_name=_input_name(options, index_path, job),
    )


def _trained_kinds(model_dir: Path) -> dict[str, str]:
    """Those of the columns that the model of this directory is trained on, as its run recorded."""
    if not (model_dir / SETTINGS).exists() or catalog.latest(model_dir) is None:
        return {}

    recorded = recorded_task(model_dir, {})
    kinds = recorded.keywords.get("kinds", {})
    return dict(kinds) if recorded.name == "ctr" else {}


def _overridden(options: CtrOptions, job: RunnerConfig) -> CtrOptions:
    """With what --params-override says: the data that it names is what is counted and shown."""
    known = dataclasses.asdict(options)
    settings = TaskSettings(params_override=job.params_override)
    for name, value in settings.options().items():
        if name in known:
            known[name] = value

    return options_of(known)


def _input_name(options: CtrOptions, index_path: Path, job: RunnerConfig) -> str:
    """What decides which rows are read after a cursor: another name is read from its start."""
    if options.is_topic:
        return f"topic {TopicAddress.parse(options.data).topic}"
    if options.is_followed:
        return f"{options.data} from {options.start or 'the first'}, followed"

    rows = index_path.stem
    if options.is_shuffled:
        rows += f" shuffled by seed {job.seed}"
    if job.sharding == DYNAMIC:
        return f"{rows}, in pieces"

    return f"{rows}, {job.num_workers} workers, batches of {job.batch_size}"


def _known(options: CtrOptions, job: RunnerConfig, console: Console) -> DataIndex:
    """The files to train on; of a topic a sample."""
    if not options.is_topic:
        _say_left_out(options, console)
        return _counted(options.data, options, console, options.window())

    model_dir = prepare_model_dir(job.model_dir)
    sample = sample_file(options, model_dir, job.num_workers)
    index = DataIndex.build([str(sample)])
    messages = counted(index.num_rows, "message")
    print_line(console, f"{options.data}: columns as in {messages}, see {sample}")
    return index


def _threads(num_workers: int) -> int:
    """Of each worker, so that together they use the cores of this machine."""
    num_cores = len(os.sched_getaffinity(0))
    return max(1, num_cores // max(1, num_workers))


def _checked_first_block(
    index: DataIndex,
    columns: DataColumns,
    text_columns: tuple[str, ...],
    kinds: Mapping[str, str],
) -> Examples:
    """BadData if its values are not what they are used as: before any process is started."""
    data = Dataset(index, columns, batch_size=1, text_columns=text_columns, kinds=kinds)
    return data.first_block()


def _say_doubtful_times(
    columns: DataColumns, schema: pa.Schema, first: Examples, console: Console
) -> None:
    if columns.time is None or first.times is None:
        return

    doubt = columns.time.doubt(first.times, schema.field(columns.time.column).type)
    if doubt:
        print_line(console, doubt, "yellow")


def _say_empty_columns(index: DataIndex, columns: DataColumns, console: Console) -> None:
    """Name what a program has forgotten to write: the job would go on without the column."""
    for line in empty_columns(index, columns.inputs):
        print_line(console, line, "yellow")


def _say_left_out(options: CtrOptions, console: Console) -> None:
    for line in left_out(names(options.data), options.window()):
        print_line(console, line)

    if options.overwrite_end_date and not options.end:
        print_line(console, "--overwrite-end-date has no effect, because there is no --end")


def _counted(
    patterns: str, options: CtrOptions, console: Console, window: Window | None = None
) -> DataIndex:
    started = time.monotonic()
    index = DataIndex.build(names(patterns), window, names(options.header))
    took_s = time.monotonic() - started

    files = counted(len(index.files), "file")
    rows = counted(index.num_rows, "row")
    blocks = counted(len(index.blocks), "block")
    print_line(console, f"{patterns}: {files}, {rows} in {blocks}, counted in {took_s:.1f} s")
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
    return jobs.train_defaults() | {"num_examples": 0, "batch_size": _BATCH_SIZE}


train_ctr = SettingsCommand(
    "ctr",
    CtrJob,
    _train_ctr,
    prefix=PREFIX,
    help="Train a click model on columns of Parquet, CSV, TSV or TFRecord files, without any code.",
    first=("data", "label", "features", "eval_data", "model"),
    examples=(
        "megalith train ctr --data 'clicks/*.parquet' --label click --features user,item,city \\",
        "    --lists history:item --dense price,age --time ts --eval-data day7.parquet",
    ),
    defaults=_defaults,
    shown={"model_dir": jobs.SHOWN_MODEL_DIR},
    decided=("task", "task_options"),
)
