"""Reading an exported model: every file is verified before anything of it is used."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from megalith.checkpoint.exported import row_files
from megalith.checkpoint.exported.about import ExportedModel
from megalith.checkpoint.exported.row_files import CompressedRows
from megalith.checkpoint.files import variables
from megalith.checkpoint.layout import arrow_files
from megalith.errors import CheckpointDamaged
from megalith.schema import TableConfig


@dataclass(frozen=True, slots=True)
class OpenTable:
    config: TableConfig
    batches: Callable[[], Iterator[CompressedRows]]


@contextmanager
def opened(directory: Path, model: ExportedModel, number: int) -> Iterator[OpenTable]:
    """A table by its place in the model, after a check that its file is what was written."""
    file = model.tables[number]
    path = directory / file.name
    with arrow_files.verified(directory, file) as reader:
        config = row_files.config_of(reader, path)
        codec = row_files.codec_of(config)
        yield OpenTable(config, lambda: row_files.batches(reader, codec, path))


def read_variables(directory: Path, model: ExportedModel) -> dict[str, NDArray[Any]]:
    """Dense variables by name."""
    file = model.variables
    with arrow_files.verified(directory, file) as reader:
        saved = list(variables.joined(variables.read_all(reader)))

    if len(saved) != file.rows:
        raise CheckpointDamaged(
            f"{directory / file.name} has {len(saved)} variables, {file.rows} were written"
        )

    return {each.name: each.value for each in saved}
