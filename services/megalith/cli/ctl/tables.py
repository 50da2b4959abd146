"""`megalith ctl tables`, `variables` and `expire`: asked of the parameter servers themselves."""

import dataclasses
import shlex

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from megalith.cli.ctl.answers import answer_with
from megalith.cli.ctl.calls import ControllerCall, command
from megalith.client import TableStats, VariableStats

_MIN_WIDTH = 160  # columns that were cut to fit would show wrong figures


@command(
    "tables",
    click.Argument(["words"], nargs=-1, metavar="[drop NAME]"),
    examples=("megalith ctl tables", "megalith ctl tables drop old_users"),
)
def tables(call: ControllerCall, words: tuple[str, ...]) -> None:
    """Show what each table holds, and what was left out of it; or drop one.

    The figures are of all servers together. Left out are ids that were refused or barred, and
    values that are not finite. Below the table: what is missing on a ps that was replaced, and the
    variables of which updates were left out.
    With --json, `megalith ctl variables` says what there is to say of variables.

    `drop NAME` drops a table that came out of a checkpoint and that the model has no longer. One
    that a program of this run has created is refused.
    """
    if words:
        _drop(call, words)
        return

    with call.cluster() as cluster:
        answer_with(call.name, call.is_json, cluster.table_stats, _show_tables)
        if not call.is_json:
            answer_with(call.name, False, cluster.variable_stats, _show_left_out)


def _drop(call: ControllerCall, words: tuple[str, ...]) -> None:
    if len(words) != 2 or words[0] != "drop":
        raise click.UsageError("write: megalith ctl tables, or megalith ctl tables drop NAME")

    name = words[1]
    with call.cluster() as cluster:
        answer_with(
            call.name,
            call.is_json,
            lambda: {"table": name, "rows": cluster.drop_table(name)},
            lambda dropped: print(f"dropped table {name}: {dropped['rows']:,} rows"),
        )


@command("variables")
def variables(call: ControllerCall) -> None:
    """Show the parts of each variable, and the updates that were left out.

    Updates that would have overflowed a variable were left out.
    """
    with call.cluster() as cluster:
        answer_with(call.name, call.is_json, cluster.variable_stats, _show_variables)


@command("expire")
def expire(call: ControllerCall) -> None:
    """Drop expired rows now, instead of at the next --expire-every-s.

    A row is expired by the time of its table's data, not by the clock.
    """
    with call.cluster() as cluster:
        answer_with(call.name, call.is_json, cluster.expire, _show_expired)


def _show_tables(stats: dict[str, TableStats]) -> None:
    names = [field.name for field in dataclasses.fields(TableStats)]
    names.remove("missing_on")
    names.remove("is_unclaimed")
    view = _table("table", names)
    for table, held in stats.items():
        figures = [f"{getattr(held, name):,}" for name in names]
        view.add_row(escape(table), *figures)

    width = max(Console().width, _MIN_WIDTH)
    Console(width=width).print(view, highlight=False)

    for table, held in stats.items():
        if held.missing_on:
            where = ", ".join(str(index) for index in held.missing_on)
            print(
                f"table {table} is missing on ps {where}, replaced since it was created: "
                "its rows there are lost. "
                "Saves fail until it is created again (create_tables)"
            )

        if held.is_unclaimed:
            print(
                f"table {table} came out of a checkpoint, and no program of this run has created "
                f"it: its {held.rows:,} rows stay in memory and in checkpoints. "
                f"To drop them: megalith ctl tables drop {shlex.quote(table)}"
            )


def _show_variables(stats: dict[str, VariableStats]) -> None:
    names = [field.name for field in dataclasses.fields(VariableStats)]
    view = _table("variable", names)
    for variable, held in stats.items():
        figures = [f"{getattr(held, name):,}" for name in names]
        view.add_row(variable, *figures)

    Console().print(view, highlight=False)


def _table(first: str, names: list[str]) -> Table:
    return Table(first, *(name.replace("_", " ") for name in names))


def _show_left_out(stats: dict[str, VariableStats]) -> None:
    for name, variable in stats.items():
        if variable.missing:
            num_parts = variable.parts + variable.missing
            print(
                f"variable {name}: {variable.missing} of its {num_parts} parts are missing, "
                "their ps was replaced. "
                "Saves fail until it is created again (create_variables)"
            )

        if variable.left_out:
            print(
                f"variable {name}: {variable.left_out:,} updates were left out, "
                "because they would have overflowed it"
            )


def _show_expired(dropped: dict[str, int]) -> None:
    for name, rows in dropped.items():
        print(f"{name}: {rows} rows dropped")
