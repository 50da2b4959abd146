"""Models for click data in plain NumPy, by the names that `--model` takes.

Each one is a file to read and to start from. A model says what a feature's row looks like
(`slices`), which arrays it wants of the rows (`layouts`) and which dense variables it has; its
`forward` returns logits and a function that carries their gradients back.
"""

from collections.abc import Callable

from megalith.tasks.models.dcn import Dcn
from megalith.tasks.models.deepfm import DeepFm
from megalith.tasks.models.fm import Fm
from megalith.tasks.models.logistic import Logistic
from megalith.tasks.models.model import Model, ModelShape

MODELS: dict[str, Callable[[ModelShape], Model]] = {
    "lr": Logistic,
    "fm": Fm,
    "deepfm": DeepFm,
    "dcn": Dcn,
}
