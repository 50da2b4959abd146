"""Calling each segment's optimizer and initializer from inside a kernel.

A segment is a tuple whose *type* names its optimizer: Adagrad's segments are `adagrad` tuples. So a kernel that gets a
table's segments is compiled for exactly the optimizers that the table has, calls them directly, and is found again in
the cache by the next process. (Passing the functions themselves compiles as well, but is never found in the cache.)
"""

from collections import namedtuple
from importlib import import_module
from typing import Any

from numba.extending import overload

from megalith.ps.kernels.dtypes import F32, I64

OPTIMIZERS = (
    "adadelta",
    "adagrad",
    "adam",
    "amsgrad",
    "batch_softmax",
    "dynamic_wd_adagrad",
    "ftrl",
    "group_adagrad",
    "group_ftrl",
    "momentum",
    "moving_average",
    "rmsprop",
    "rmspropv2",
    "sgd",
)
INITIALIZERS = ("fill_uniform",)

# w, s: offsets of weights and state in a row; g: column of the gradients; the rest as in optimizers/__init__.py.
_OPTIMIZER_FIELDS = ("w", "s", "g", "dim", "lr", "params")
_INITIALIZER_FIELDS = ("w", "dim", "seed", "params")

_TYPES: dict[str, Any] = {
    name: namedtuple(name, fields, module=__name__)
    for names, fields in ((OPTIMIZERS, _OPTIMIZER_FIELDS), (INITIALIZERS, _INITIALIZER_FIELDS))
    for name in names
}
globals().update(_TYPES)  # where pickle looks for them: they are part of the key of cached kernels


def segment_type(name: str) -> Any:
    """The tuple type of an optimizer (its kernel's module) or of an initializer (its kernel's name)."""
    return _TYPES[name]


def apply_segments(segments: Any, values: F32, starts: I64, grads: F32, step: int) -> None:
    """Run every segment's optimizer over the rows at `starts`, one after the other."""
    raise NotImplementedError  # kernels get the overload below


@overload(apply_segments)
def _apply_segments(segments: Any, values: Any, starts: Any, grads: Any, step: Any) -> Any:
    if not len(segments):

        def nothing(segments: Any, values: Any, starts: Any, grads: Any, step: Any) -> Any:
            pass

        return nothing
    apply = import_module(f"megalith.ps.kernels.optimizers.{segments[0].instance_class.__name__}").apply

    def run(segments: Any, values: Any, starts: Any, grads: Any, step: Any) -> Any:
        head = segments[0]
        apply(values, starts, head.w, head.s, grads, head.g, head.dim, head.lr, head.params, step)
        apply_segments(segments[1:], values, starts, grads, step)

    return run


def fill_segments(fills: Any, values: F32, starts: I64, keys: I64) -> None:
    """Run every random initializer over the rows at `starts`; constants came with the template."""
    raise NotImplementedError  # kernels get the overload below


@overload(fill_segments)
def _fill_segments(fills: Any, values: Any, starts: Any, keys: Any) -> Any:
    if not len(fills):

        def nothing(fills: Any, values: Any, starts: Any, keys: Any) -> Any:
            pass

        return nothing
    fill = getattr(import_module("megalith.ps.kernels.initialize"), fills[0].instance_class.__name__)

    def run(fills: Any, values: Any, starts: Any, keys: Any) -> Any:
        head = fills[0]
        fill(values, starts, head.w, head.dim, keys, head.seed, head.params)
        fill_segments(fills[1:], values, starts, keys)

    return run
