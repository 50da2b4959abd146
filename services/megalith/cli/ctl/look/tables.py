"""Show what each table holds, and what was left out of it; or drop one.

The figures are of all servers together. Left out are ids that were refused or barred, and
values that are not finite. Below the table: what is missing on a ps that was replaced, tables
over their memory budget, and the variables of which updates were left out.
With --json, `megalith ctl variables` says what there is to say of variables.

`drop NAME` drops a table that came out of a checkpoint and that the model has no longer. One
that a program of this run has created is refused.
"""

import shlex
from collections.abc import Iterable
from typing import Any

import click
from rich.markup import escape

from megalith.cli.ctl.answers import answer_with
from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.screen.columns import Column, print_columns
from megalith.cli.screen.words import size
from megalith.client import TableStats, VariableStats
from megalith.runtime.counting import counted
from megalith.schema.table_counts import NAMES as _FIGURES
from megalith.wire.routing import ps_names

_TITLES = {"bytes": "memory"}


@command(
    click.Argument(["words"], nargs=-1, metavar="[drop NAME]"),
    examples=("megalith ctl tables", "megalith ctl tables drop old_users"),
)
def tables(call: ControllerCall, words: tuple[str, ...]) -> None:
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

    def show(dropped: dict[str, Any]) -> None:
        rows = counted(dropped["rows"], "row")
        print(f"dropped table {name}: {rows}")

    with call.cluster() as cluster:
        answer_with(
            call.name,
            call.is_json,
            lambda: {"table": name, "rows": cluster.drop_table(name)},
            show,
        )


def _show_tables(stats: dict[str, TableStats]) -> None:
    rows = [
        [_name(table, held), *(_figure(held, name) for name in _FIGURES)]
        for table, held in stats.items()
    ]
    print_columns([Column("table", is_figure=False), *_columns(stats.values())], rows)

    for table, held in stats.items():
        name = _name(table, held)
        if held.missing_on:
            print(
                f"table {name} is missing on {ps_names(held.missing_on)}, replaced since it was "
                "created: its rows there are lost. "
                "Saves fail until it is created again (create_tables)"
            )

        if held.is_unclaimed:
            stay = counted(held.rows, "row stays", "rows stay")
            print(
                f"table {table} came out of a checkpoint, and no program of this run has created "
                f"it: its {stay} in memory and in checkpoints. "
                f"To drop them: megalith ctl tables drop {shlex.quote(table)}"
            )

        if held.over_budget_on:
            print(
                f"table {name} is over its memory budget on {ps_names(held.over_budget_on)}: "
                "new ids are refused there until rows expire"
            )


def _name(table: str, held: TableStats) -> str:
    """A table of several features has a name that says nothing: its features do."""
    is_named = table in held.features or not held.features
    return escape(table if is_named else ", ".join(held.features))


def _columns(stats: Iterable[TableStats]) -> list[Column]:
    """What is 0 for all tables goes first, if there is no room."""
    columns = []
    for number, name in enumerate(_FIGURES):
        goes = 1 + len(_FIGURES) - number

        if any(getattr(held, name) for held in stats):
            goes += len(_FIGURES)  # after all that are 0

        if name in ("rows", "bytes"):
            goes = 0

        title = _TITLES.get(name, name.replace("_", " "))
        columns.append(Column(title, goes))

    return columns


def _figure(held: TableStats, name: str) -> str:
    figure: int = getattr(held, name)
    return size(figure) if name == "bytes" else f"{figure:,}"


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
