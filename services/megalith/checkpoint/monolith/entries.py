"""What Monolith's entries of a table look like, and the rows that they become."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from megalith.checkpoint.monolith.kernels import entries as kernels
from megalith.checkpoint.monolith.record_files import Records
from megalith.checkpoint.monolith.wire import BYTES, fields_of
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import InvalidRequest
from megalith.kernels.dtypes import F32, I64, U8
from megalith.schema import Segment, TableConfig
from megalith.schema.optimizers import Dc, Optimizer, StochasticRoundingFloat16

# The case of each optimizer in Monolith's SingleOptimizerDump, and what we call its fields.
# moving_average has no record at all.
_CASES = {
    "adagrad": 1,
    "sgd": 2,
    "ftrl": 3,
    "dynamic_wd_adagrad": 4,
    "adadelta": 6,
    "adam": 7,
    "amsgrad": 8,
    "momentum": 9,
    "rmsprop": 11,
    "rmspropv2": 12,
    "group_ftrl": 13,
    "batch_softmax": 14,
    "group_adagrad": 15,
}
_FIELDS = {
    "adagrad": ("norm",),
    "ftrl": ("zero", "norm"),
    "dynamic_wd_adagrad": ("norm", "last_update_step"),
    "adadelta": ("accum", "accum_update"),
    "adam": ("m", "v", "beta1_power", "beta2_power"),
    "amsgrad": ("m", "v", "vhat", "beta1_power", "beta2_power"),
    "momentum": ("n",),
    "rmsprop": ("n",),
    "rmspropv2": ("n",),
    "group_ftrl": ("zero", "norm"),
    "batch_softmax": ("last_step",),
    "group_adagrad": ("grad_square_sum",),
}
_NAMES = {case: name for name, case in _CASES.items()}
_SAYS_NO_WIDTH = ("sgd", "group_adagrad")  # their state is not as wide as their segment


class Entries(NamedTuple):
    """Some entries as rows; `statuses` says what became of each (kernels/entries.py)."""

    ids: I64
    rows: F32
    times: I64
    statuses: U8


@dataclass(frozen=True, slots=True)
class _StateMap:
    """By segment and field number: where in a row it goes, how wide it is, whether it is a step."""

    cases: I64
    starts: I64
    widths: I64
    steps: I64


class EntryParser:
    """Makes rows of the entries of one table."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.layout = RowLayout(config)
        self._map = _state_map(config, self.layout)

    def parse(self, records: Records) -> Entries:
        count = records.begins.size
        ids = np.zeros(count, np.int64)
        rows = np.empty((count, self.layout.width), np.float32)
        times = np.empty(count, np.int64)
        statuses = np.empty(count, np.uint8)
        kernels.parse(
            records.data,
            records.begins,
            records.ends,
            self.layout.dim,
            self.layout.template,
            self._map.cases,
            self._map.starts,
            self._map.widths,
            self._map.steps,
            ids,
            rows,
            times,
            statuses,
        )

        return Entries(ids, rows, times, statuses)


def _state_map(config: TableConfig, layout: RowLayout) -> _StateMap:
    num_segments = len(config.segments)
    shape = (num_segments, kernels.MOST_FIELDS)

    cases = np.zeros(num_segments, np.int64)
    starts = np.zeros(shape, np.int64)
    widths = np.zeros(shape, np.int64)
    steps = np.zeros(shape, np.int64)

    for number, segment in enumerate(config.segments):
        name = _innermost(segment.optimizer).name
        cases[number] = _CASES.get(name, 0)

        names = _FIELDS.get(name, ())
        state_start = layout.state_offsets[number]
        for field in layout.optimizers[number].fields:
            field_number = names.index(field.name) + 1

            place = (number, field_number)
            starts[place] = state_start + field.offset
            widths[place] = field.width
            steps[place] = field.is_step

    return _StateMap(cases, starts, widths, steps)


def _innermost(optimizer: Optimizer) -> Optimizer:
    while isinstance(optimizer, Dc | StochasticRoundingFloat16):
        optimizer = optimizer.base

    return optimizer


# --- what a table's rows look like ---


def segments_of(text: str) -> tuple[Segment, ...]:
    """Segments as people write them: 1:ftrl,16:adagrad.

    A wrapped optimizer is written as stochastic_rounding_float16(adagrad).
    """
    segments = []
    for part in text.split(","):
        width, _, name = part.strip().partition(":")
        if not width.isdigit():
            raise InvalidRequest(f"segments {text!r}: {part!r} is not like 16:adagrad")

        optimizer = _optimizer(name)
        segments.append(Segment(int(width), optimizer=optimizer))

    return tuple(segments)


def _optimizer(name: str) -> Optimizer:
    outer, has_base, base = name.partition("(")

    kind: Any = Optimizer.kinds.get(outer)
    is_closed = bool(has_base) == name.endswith(")")
    if kind is None or not is_closed:
        known = ", ".join(sorted(Optimizer.kinds))
        raise InvalidRequest(f"there is no optimizer {name!r}; there are {known}")

    arguments = []
    if has_base:
        arguments.append(_optimizer(base[:-1]))

    optimizer: Optimizer = kind(*arguments)
    return optimizer


def segments_in(entry: bytes, table: str) -> tuple[Segment, ...]:
    """The segments of a table, as one of its entries shows them.

    InvalidRequest if it does not: some optimizers keep no state that is as wide as their segment.
    """
    where = f"table {table}"
    width = 0

    dumps: list[bytes] = []
    for number, wire, value in fields_of(entry, where):
        if number == 2:
            width += len(value) // 4
        elif number == 3 and wire == BYTES:
            for field, _, dump in fields_of(value, where):
                if field == 1:
                    dumps.append(dump)

    names: list[str] = []
    dims: list[int | None] = []

    for dump in dumps:
        name, dim = _described(dump, where)
        names.append(name)
        dims.append(dim)

    # If one segment alone does not say its width, it has what the others leave.
    rest = width - sum(dim or 0 for dim in dims)
    if dims.count(None) == 1 and rest > 0:
        number = dims.index(None)
        dims[number] = rest
        rest = 0

    segments = list(zip(dims, names, strict=True))
    if None in dims or rest or not segments:
        shown = [f"{dim or '?'}:{name}" for dim, name in segments]
        found = ", ".join(shown) or "no state"
        raise InvalidRequest(
            f"table {table}: its {width} floats a row have {found}, which does not say how wide "
            f"each segment is; say it, for example --segments {table}=1:ftrl,16:adagrad"
        )

    return tuple(Segment(dim or 0, optimizer=_optimizer(name)) for dim, name in segments)


def _described(dump: bytes, where: str) -> tuple[str, int | None]:
    """The optimizer of a segment, and the segment's width if its state is as wide."""
    for case, _, content in fields_of(dump, where):
        name = _NAMES.get(case)
        if name is None:
            raise InvalidRequest(f"{where}: Monolith's optimizer number {case} is not known here")

        if name in _SAYS_NO_WIDTH:
            return name, None
        if name == "batch_softmax":
            return name, 1

        first = [value for number, _, value in fields_of(content, where) if number == 1]
        return name, sum(len(value) // 4 for value in first)

    return "sgd", None
