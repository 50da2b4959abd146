"""What ranks compare before they train together, and what they take from rank 0."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from megalith.collective.ranks import Ranks
from megalith.collective.same_model import model_by_name
from megalith.schema import TableConfig, VariableConfig


def check_same(
    ranks: Ranks,
    tables: Iterable[TableConfig],
    variables: Iterable[VariableConfig],
    settings: object,
    folder: Path | None,
) -> None:
    """RanksDiffer, on all ranks, unless they train the same model in the same way."""
    by_name = model_by_name(tables, variables)
    by_name["the settings"] = repr(settings)
    by_name["--model-dir"] = str(folder)
    ranks.check_equal(by_name)


def from_first_rank(ranks: Ranks, variables: Sequence[VariableConfig]) -> list[VariableConfig]:
    """The variables with the initial values of rank 0: those of others may be drawn otherwise."""
    shared = []
    for variable in variables:
        initial = ranks.first_of(variable.initial)
        shared.append(dataclasses.replace(variable, initial=initial))

    return shared
