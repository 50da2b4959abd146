"""Print the weights of a search for an architecture, as a JSON list of texts.

They are the values of a variable; increments are taken into account.
"""

import json

from megalith.checkpoint.inspection.variables import NasWeights
from megalith.checkpoint.inspection.variables import nas_weights as read_nas_weights
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import CheckpointCall, checkpoint_argument, checkpoint_at, command
from megalith.runtime.config.commands import Option

_NAME = Option(
    ["--name"],
    default="arch_weights",
    show_default=True,
    metavar="TEXT",
    help="A part of the variable's name; the first by name that has it is shown.",
)


@command(
    checkpoint_argument(),
    _NAME,
    examples=("megalith ckpt nas-weights model --name arch_weights",),
)
def nas_weights(call: CheckpointCall, checkpoint: Location, name: str) -> None:
    found = read_nas_weights(checkpoint_at(checkpoint), name)
    call.answer(found, _show)


def _show(found: NasWeights) -> None:
    print(json.dumps(found.weights))
