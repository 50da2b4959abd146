"""Calling each segment's optimizer and initializer from inside a kernel.

A stage of an update is a tuple whose *type* names its kernel: Adagrad's are `adagrad` tuples. So a
kernel that gets a table's stages is compiled for exactly the optimizers that the table has, calls
them directly, and is found again in the cache by the next process. (Passing the functions
themselves compiles as well, but is never found in the cache.)
"""

from collections import namedtuple
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from numba.extending import overload

from megalith.engine.kernels import initialize, optimizers
from megalith.kernels.dtypes import F32, I64

INITIALIZERS = ("fill_uniform",)

# w, s: offsets of weights and state in a row; g: column of the gradients; the rest as in
# optimizers/__init__.py.
_STAGE_FIELDS = ("w", "s", "g", "dim", "lr", "params")
_INITIALIZER_FIELDS = ("w", "dim", "seed", "params")

# One type for each file in optimizers/, all of them at once: a kernel in the cache is found by its
# types, which pickle looks up in this module, also those of tables that this process does not have.
_TYPES: dict[str, Any] = {}
for _module in iter_modules(optimizers.__path__):
    _TYPES[_module.name] = namedtuple(_module.name, _STAGE_FIELDS, module=__name__)
for _name in INITIALIZERS:
    _TYPES[_name] = namedtuple(_name, _INITIALIZER_FIELDS, module=__name__)
globals().update(_TYPES)


def segment_type(name: str) -> Any:
    """The tuple type of a stage or of an initializer.

    A stage is called after its module in optimizers/, an initializer after its kernel.
    """
    return _TYPES[name]


def run_stages(stages: Any, values: F32, starts: I64, grads: F32, step: int) -> None:
    """Run all stages of all segments over the rows at `starts`, one after the other."""
    raise NotImplementedError  # kernels get the overload below


@overload(run_stages)
def _run_stages(stages: Any, values: Any, starts: Any, grads: Any, step: Any) -> Any:
    if not len(stages):

        def nothing(stages: Any, values: Any, starts: Any, grads: Any, step: Any) -> Any:
            pass

        return nothing
    name = stages[0].instance_class.__name__
    apply = import_module(f"{optimizers.__name__}.{name}").apply

    def run(stages: Any, values: Any, starts: Any, grads: Any, step: Any) -> Any:
        head = stages[0]
        apply(values, starts, head.w, head.s, grads, head.g, head.dim, head.lr, head.params, step)
        run_stages(stages[1:], values, starts, grads, step)

    return run


def fill_segments(fills: Any, values: F32, starts: I64, ids: I64) -> None:
    """Run every random initializer over the rows at `starts`; constants came with the template."""
    raise NotImplementedError  # kernels get the overload below


@overload(fill_segments)
def _fill_segments(fills: Any, values: Any, starts: Any, ids: Any) -> Any:
    if not len(fills):

        def nothing(fills: Any, values: Any, starts: Any, ids: Any) -> Any:
            pass

        return nothing
    name = fills[0].instance_class.__name__
    fill = getattr(initialize, name)

    def run(fills: Any, values: Any, starts: Any, ids: Any) -> Any:
        head = fills[0]
        fill(values, starts, head.w, head.dim, ids, head.seed, head.params)
        fill_segments(fills[1:], values, starts, ids)

    return run
