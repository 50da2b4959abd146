"""Show the parts of each variable, and the updates that were left out.

Updates that would have overflowed a variable were left out.
"""

import dataclasses

from rich.markup import escape

from megalith.cli.ctl.answers import answer_with
from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.screen.columns import Column, print_columns
from megalith.client import VariableStats


@command()
def variables(call: ControllerCall) -> None:
    with call.cluster() as cluster:
        answer_with(call.name, call.is_json, cluster.variable_stats, _show)


def _show(stats: dict[str, VariableStats]) -> None:
    names = [field.name for field in dataclasses.fields(VariableStats)]
    rows = []
    for variable, held in stats.items():
        row = [escape(variable)]
        for name in names:
            figure = getattr(held, name)
            row.append(f"{figure:,}")

        rows.append(row)

    columns = [Column("variable", is_figure=False)]
    for name in names:
        heading = name.replace("_", " ")
        columns.append(Column(heading))

    print_columns(columns, rows)
