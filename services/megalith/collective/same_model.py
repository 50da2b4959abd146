"""What ranks compare of the models that they are about to train."""

from collections.abc import Iterable

from megalith.schema import TableConfig, VariableConfig


def model_by_name(
    tables: Iterable[TableConfig], variables: Iterable[VariableConfig]
) -> dict[str, str]:
    """Each table and variable in words, for `Ranks.check_equal`.

    Variables have their place: gradients are averaged in that order. Initial values are left out,
    since those of one rank count.
    """
    by_name = {f"table {table.name}": repr(table) for table in tables}
    for place, variable in enumerate(variables):
        initial = variable.initial
        shape = list(initial.shape)
        by_name[f"variable {variable.name}"] = (
            f"variable {place}: {initial.dtype} {shape}, {variable.optimizer!r}, "
            f"{variable.schedule!r}"
        )

    return by_name
