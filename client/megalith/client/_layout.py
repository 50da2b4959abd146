"""What the model gets: columns of combined features, put together in one of four ways."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from megalith.client._combiners import FirstN
from megalith.client._feature import Feature
from megalith.wire.errors import InvalidSetting, UnknownFeature
from megalith.wire.validation import require


class OutType(StrEnum):
    """How the parts of a layout meet. Shapes are for parts without a sequence, then for those of FirstN(n)."""

    CONCAT = "concat"  # [B, sum of widths]; [B, n, sum of widths]
    STACK = "stack"  # [B, parts, width]; [B, parts, n, width]
    ADD_N = "add_n"  # [B, width]
    NONE = "none"  # one array per part: [B, width]; [B, n, width]


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [start, end) of a feature's row, where slices are not the right cut."""

    feature: str
    start: int
    end: int


Part = str | Columns


@dataclass(frozen=True, slots=True)
class Layout:
    """Parts and how they meet. A part is "feature.slice", "feature" for its whole row, or Columns."""

    out_type: OutType
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        require(bool(self.parts), f"layout {self.out_type}: it has no parts")

    @classmethod
    def concat(cls, *parts: Part) -> "Layout":
        return cls(OutType.CONCAT, parts)

    @classmethod
    def stack(cls, *parts: Part) -> "Layout":
        return cls(OutType.STACK, parts)

    @classmethod
    def add_n(cls, *parts: Part) -> "Layout":
        return cls(OutType.ADD_N, parts)

    @classmethod
    def none(cls, *parts: Part) -> "Layout":
        return cls(OutType.NONE, parts)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one part goes: row columns [first, first + width) of `feature` to `output`, seen as [B, everything].

    They start at column `base`; element j of a sequence starts `stride` further than the one before.
    """

    feature: str
    first: int
    width: int
    output: int
    base: int
    stride: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout resolved against its features. `shapes` are those of the outputs without the batch."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    places: tuple[Place, ...]


def plan(name: str, layout: Layout, features: Mapping[str, Feature]) -> Plan:
    """Check a layout and lay it out. InvalidSetting if its parts do not fit together."""
    parts = [_resolve(name, part, features) for part in layout.parts]
    is_none = layout.out_type is OutType.NONE  # each part is then an array of its own
    outputs = [
        _arrange(name, layout.out_type, group, features)
        for group in ([[p] for p in parts] if is_none else [parts])
    ]
    places = [
        Place(part.feature, part.start, part.end - part.start, output, base, stride)
        for output, (_, stride, arranged) in enumerate(outputs)
        for part, base in arranged
    ]
    return Plan(name, tuple(shape for shape, _, _ in outputs), tuple(places))


def _arrange(
    name: str, out_type: OutType, parts: list[Columns], features: Mapping[str, Feature]
) -> tuple[tuple[int, ...], int, list[tuple[Columns, int]]]:
    """Shape, stride of a sequence's elements, and the base of each part, in one array."""
    sequence = _sequence_shape(name, out_type, parts, features)
    widths = [part.end - part.start for part in parts]
    if out_type in (OutType.STACK, OutType.ADD_N):
        require(
            len(set(widths)) == 1,
            f"layout {name}: {out_type} needs parts of equal width, not {widths}",
        )
    match out_type:
        case OutType.CONCAT | OutType.NONE:
            bases = [0, *accumulate(widths)][:-1]
            return (*sequence, sum(widths)), sum(widths), list(zip(parts, bases, strict=True))
        case OutType.STACK:
            shape = (len(parts), *sequence, widths[0])
            return (
                shape,
                widths[0],
                [(part, k * math.prod(shape[1:])) for k, part in enumerate(parts)],
            )
        case OutType.ADD_N:
            return (widths[0],), 0, [(part, 0) for part in parts]


def _resolve(layout: str, part: Part, features: Mapping[str, Feature]) -> Columns:
    if isinstance(part, Columns):
        name, slice_name = part.feature, None
    elif part in features:
        name, slice_name = part, None
    else:
        name, _, slice_name = part.rpartition(".")
    if name not in features:
        raise UnknownFeature(
            f"layout {layout}: no feature for part {part!r}; there are {sorted(features)}"
        )
    feature = features[name]
    if isinstance(part, Columns):
        fits = 0 <= part.start < part.end <= feature.dim
        require(
            fits,
            f"layout {layout}: columns [{part.start}, {part.end}) are not within the {feature.dim} of {name}",
        )
        return part
    if slice_name is None:
        return Columns(name, 0, feature.dim)
    columns = feature.columns(slice_name)
    if columns is None:
        known = [known.name for known in feature.slices]
        raise UnknownFeature(
            f"layout {layout}: feature {name} has no slice {slice_name!r}; it has {known}"
        )
    return Columns(name, *columns)


def _sequence_shape(
    name: str, out_type: OutType, parts: list[Columns], features: Mapping[str, Feature]
) -> tuple[int, ...]:
    """(n,) if the parts are sequences of FirstN(n), () if they are vectors; they must be of one kind."""
    combiners = [features[part.feature].combiner for part in parts]
    lengths = [combiner.n if isinstance(combiner, FirstN) else None for combiner in combiners]
    if len(set(lengths)) > 1:
        raise InvalidSetting(
            f"layout {name}: {out_type} of sequences of lengths {lengths} (None: no sequence)"
        )
    if lengths[0] is None:
        return ()
    require(
        out_type is not OutType.ADD_N,
        f"layout {name}: sequences cannot be added; use concat, stack or none",
    )
    return (lengths[0],)
