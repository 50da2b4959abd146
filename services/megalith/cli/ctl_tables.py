"""`megalith ctl tables`, `variables` and `expire`: what the parameter servers hold, asked of them."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from megalith.cli import ctl
from megalith.client import Cluster, TableStats, VariableStats, connect


def tables(
    context: typer.Context,
    controller: ctl.ControllerOption = "",
    model_dir: ctl.ModelDirOption = "",
    as_json: ctl.JsonOption = False,
) -> None:
    """Show what each table holds on all servers together, and what was left out: refused, barred, not finite.

    Below it, what is missing on a ps that was replaced, and the variables of which updates were left out; with --json
    what is said of variables is in `megalith ctl variables`.
    """
    is_json = as_json or context.obj.as_json
    with _cluster(context, controller, model_dir) as cluster:
        ctl.answer_with("ctl tables", is_json, cluster.tables, _show_tables)
        if not is_json:
            ctl.answer_with("ctl tables", is_json, cluster.variables, _show_left_out)


def variables(
    context: typer.Context,
    controller: ctl.ControllerOption = "",
    model_dir: ctl.ModelDirOption = "",
    as_json: ctl.JsonOption = False,
) -> None:
    """Show in how many parts servers hold each variable, and how many updates of it were left out: they overflow."""
    with _cluster(context, controller, model_dir) as cluster:
        ctl.answer_with(
            "ctl variables", as_json or context.obj.as_json, cluster.variables, _show_variables
        )


def expire(
    context: typer.Context,
    controller: ctl.ControllerOption = "",
    model_dir: ctl.ModelDirOption = "",
    as_json: ctl.JsonOption = False,
) -> None:
    """Drop the rows that are expired at their table's data time now, instead of at the next --expire-every-s."""
    with _cluster(context, controller, model_dir) as cluster:
        ctl.answer_with("ctl expire", as_json or context.obj.as_json, cluster.expire, _show_expired)


@contextmanager
def _cluster(context: typer.Context, controller: str, model_dir: str) -> Iterator[Cluster]:
    with (
        ctl.which_job(context, controller, model_dir) as (address, directory),
        connect(address, model_dir=directory, timeout_s=context.obj.timeout_s) as cluster,
    ):
        yield cluster


def _show_tables(stats: dict[str, TableStats]) -> None:
    names = [field.name for field in dataclasses.fields(TableStats) if field.name != "missing_on"]
    view = Table("table", *(name.replace("_", " ") for name in names))
    for table, held in stats.items():
        view.add_row(escape(table), *(f"{getattr(held, name):,}" for name in names))
    Console(width=max(Console().width, 160)).print(view, highlight=False)
    for table, held in stats.items():
        if held.missing_on:
            where = ", ".join(map(str, held.missing_on))
            print(
                f"table {table} is missing on ps {where}, replaced since it was created: its rows there are lost. "
                "Saves fail until it is created again (create_tables)"
            )


def _show_variables(stats: dict[str, VariableStats]) -> None:
    view = Table(
        "variable", *(field.name.replace("_", " ") for field in dataclasses.fields(VariableStats))
    )
    for name, variable in stats.items():
        view.add_row(name, *(f"{count:,}" for count in dataclasses.astuple(variable)))
    Console().print(view, highlight=False)


def _show_left_out(stats: dict[str, VariableStats]) -> None:
    for name, variable in stats.items():
        if variable.missing:
            print(
                f"variable {name}: {variable.missing} of its {variable.parts + variable.missing} parts are missing, "
                "their ps was replaced. Saves fail until it is created again (create_variables)"
            )
        if variable.left_out:
            print(
                f"variable {name}: {variable.left_out:,} updates were left out, because they would have overflowed it"
            )


def _show_expired(dropped: dict[str, int]) -> None:
    for name, rows in dropped.items():
        print(f"{name}: {rows} rows dropped")
