"""The variables of a checkpoint with its increments."""

from dataclasses import dataclass

from megalith.checkpoint.directory import increments
from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.files.variables import SavedVariable
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.storage.location import Location
from megalith.errors import UnknownVariable


def variables_of(chain: Chain) -> dict[str, SavedVariable]:
    """Whole variables, by name. An increment has all of them, so the last one counts."""
    pieces: list[SavedVariable] = []
    directory, content = chain.folders[-1]

    for file in content.files:
        if file.kind != FileKind.VARIABLES:
            continue

        with arrow_files.opened(directory, file) as reader:
            pieces += variable_files.read_all(reader)

    return {whole.name: whole for whole in variable_files.joined(pieces)}


@dataclass(frozen=True, slots=True)
class NasWeights:
    """The weights of a search for an architecture, each as a text."""

    variable: str
    step: int
    weights: list[str]


def nas_weights(directory: Location, name_contains: str) -> NasWeights:
    """The values of the first variable, by name, that contains this in its name."""
    chain = increments.read_chain(directory)
    variables = variables_of(chain)

    for name in sorted(variables):
        if name_contains in name:
            values = variables[name].value.reshape(-1)
            texts = [str(value) for value in values]
            return NasWeights(name, chain.last.step, texts)

    raise UnknownVariable(
        f"{directory} has no variable with {name_contains!r} in its name; it has "
        f"{', '.join(sorted(variables)) or 'none'}"
    )
