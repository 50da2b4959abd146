"""What the model gets: columns of combined features, put together in one of four ways."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from megalith.client._features.combiners import FirstN
from megalith.client._features.feature import Feature
from megalith.errors import InvalidSetting, UnknownFeature
from megalith.schema.checks import require


class OutType(StrEnum):
    """How the parts of a layout are joined.

    Shapes are for parts without a sequence, then for those of FirstN(n).
    """

    CONCAT = "concat"  # [B, sum of widths]; [B, n, sum of widths]
    STACK = "stack"  # [B, parts, width]; [B, parts, n, width]
    ADD_N = "add_n"  # [B, width]
    NONE = "none"  # one array per part: [B, width]; [B, n, width]


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [start, end) of a feature's row, where no slice has just these."""

    feature: str
    start: int
    end: int


LayoutPart = str | Columns


@dataclass(frozen=True, slots=True)
class Layout:
    """An array that the model gets: its parts, and how they are joined.

    A part is "feature.slice", "feature" for its whole row, or Columns.
    """

    out_type: OutType
    parts: tuple[LayoutPart, ...]

    def __post_init__(self) -> None:
        require(bool(self.parts), f"layout {self.out_type}: it has no parts")

    @classmethod
    def concat(cls, *parts: LayoutPart) -> "Layout":
        return cls(OutType.CONCAT, parts)

    @classmethod
    def stack(cls, *parts: LayoutPart) -> "Layout":
        return cls(OutType.STACK, parts)

    @classmethod
    def add_n(cls, *parts: LayoutPart) -> "Layout":
        return cls(OutType.ADD_N, parts)

    @classmethod
    def none(cls, *parts: LayoutPart) -> "Layout":
        return cls(OutType.NONE, parts)


@dataclass(frozen=True, slots=True)
class PartTarget:
    """Where one part goes.

    Row columns [first, first + width) of `feature` go to `output`, seen as [B, everything]. They
    start at column `base`; element j of a sequence starts `stride` further than the one before.
    """

    feature: str
    first: int
    width: int
    output: int
    base: int
    stride: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout resolved against its features.

    `shapes` are those of the outputs without the batch.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    targets: tuple[PartTarget, ...]


def plan(name: str, layout: Layout, features: Mapping[str, Feature]) -> Plan:
    """Check a layout and lay it out. InvalidSetting if its parts do not fit together."""
    parts = [_resolve(name, part, features) for part in layout.parts]
    groups = [parts]
    if layout.out_type is OutType.NONE:  # each part is an array of its own
        groups = [[part] for part in parts]

    shapes: list[tuple[int, ...]] = []
    targets: list[PartTarget] = []

    for output, group in enumerate(groups):
        shape, stride, arranged = _arrange(name, layout.out_type, group, features)
        shapes.append(shape)

        for part, base in arranged:
            width = part.end - part.start
            target = PartTarget(part.feature, part.start, width, output, base, stride)
            targets.append(target)

    return Plan(name, tuple(shapes), tuple(targets))


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

    arranged: list[tuple[Columns, int]] = []

    match out_type:
        case OutType.CONCAT | OutType.NONE:
            base = 0
            for part, width in zip(parts, widths, strict=True):
                arranged.append((part, base))
                base += width

            total = base
            return (*sequence, total), total, arranged

        case OutType.STACK:
            width = widths[0]
            one = (*sequence, width)  # the shape of one part
            distance = math.prod(one)

            for number, part in enumerate(parts):
                arranged.append((part, number * distance))

            return (len(parts), *one), width, arranged

        case OutType.ADD_N:
            for part in parts:
                arranged.append((part, 0))

            return (widths[0],), 0, arranged


def _resolve(layout: str, part: LayoutPart, features: Mapping[str, Feature]) -> Columns:
    if isinstance(part, Columns):
        name = part.feature
        slice_name = None
    elif part in features:
        name = part
        slice_name = None
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
            f"layout {layout}: columns [{part.start}, {part.end}) "
            f"are not within the {feature.dim} of {name}",
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
    """(n,) if the parts are sequences of FirstN(n), () if they are vectors.

    They must be of one kind.
    """
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
