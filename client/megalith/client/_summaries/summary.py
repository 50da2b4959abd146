"""What Monolith's plugin of TensorBoard shows: arrays, each with a head that says what they are.

The head is a JSON text in the metadata of the summary. For example, the weights of two parts of a
network have the tag `gating/monolith_nas_weight`, and this head:

    {"tag_type": "gating", "segment_names": ["a", "b"], "segment_sizes": [3, 5], ...}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import InvalidRequest, ShapeMismatch
from megalith.schema.checks import as_array

PLUGIN = "monolith"
_NAS_WEIGHT = "monolith_nas_weight"
_FEATURE_INSIGHT = "monolith_feature_insight"

SegmentSizes = Sequence[int] | Sequence[Sequence[int]]


class SummaryKind(StrEnum):
    """What a summary shows; the first part of its tag."""

    GATING = "gating"
    SELECTING = "selecting"
    MIXED = "mixed"
    SIMPLE = "simple"
    FI_DIRECT = "fi_direct"
    FI_TRAIN = "fi_train"


_GROUPED = (SummaryKind.GATING, SummaryKind.FI_TRAIN)


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """An array of one step under a tag; `head` is what the plugin reads."""

    tag: str
    values: NDArray[Any]
    head: str
    description: str


def nas_summary(
    weights: ArrayLike,
    names: Sequence[str],
    sizes: SegmentSizes,
    *,
    groups: Sequence[Sequence[str]] | None = None,
    kind: SummaryKind | None = None,
    name: str = "",
    description: str = "",
) -> Summary:
    """The weights by which a search for an architecture rates parts of a network.

    `sizes` has one size for each name, or one list of sizes that can be chosen from. The kind
    follows from that: gating or selecting. `groups` are names that are rated together.
    """
    found = _head(names, sizes, groups, kind)
    values = as_array(weights, "nas_summary: weights")
    return _summary(_NAS_WEIGHT, values, found, name, description)


def feature_insight_summary(
    inputs: ArrayLike,
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    weight: ArrayLike | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    label: ArrayLike | None = None,
    name: str = "",
    description: str = "",
) -> Summary:
    """How much each feature contributes: `inputs` are [examples, sum of sizes], a part a feature.

    With a `weight` [sum of sizes, k] each part is multiplied by its lines of it. Without a `label`
    the k products of a part are then squared and added up. With one they stay, and the label
    follows as the last columns, so that a model can be trained on what is written.
    """
    matrix = as_array(inputs, "feature_insight_summary: inputs").astype(np.float32)
    _check_parts(matrix, names, sizes)
    kind = SummaryKind.FI_DIRECT if label is None else SummaryKind.FI_TRAIN

    widths = list(sizes)
    if weight is not None:
        factors = as_array(weight, "feature_insight_summary: weight").astype(np.float32)
        matrix = _products(matrix, sizes, factors, is_summed=label is None)
        num_parts = len(widths)
        width = matrix.shape[1] // num_parts
        widths = [width] * num_parts

    found = _head(names, widths, groups, kind)
    found["label_size"] = 0

    if label is not None:
        columns = _label_columns(label, len(matrix))
        matrix = np.concatenate([matrix, columns], axis=1)
        found["label_size"] = columns.shape[1]

    return _summary(_FEATURE_INSIGHT, matrix, found, name, description)


def _products(
    matrix: NDArray[np.float32],
    sizes: Sequence[int],
    weight: NDArray[np.float32],
    *,
    is_summed: bool,
) -> NDArray[np.float32]:
    """Each part times its lines of the weight: [examples, k] a part, or their squares added up."""
    if weight.ndim != 2 or len(weight) != sum(sizes):
        raise ShapeMismatch(
            f"feature_insight_summary: weight of shape {list(weight.shape)}, "
            f"expected a matrix of {sum(sizes)} lines"
        )

    ends = np.cumsum(sizes)[:-1]
    parts = np.split(matrix, ends, axis=1)
    lines = np.split(weight, ends)
    products = []

    for part, line in zip(parts, lines, strict=True):
        product = part @ line

        if is_summed:
            squares = np.square(product)
            product = squares.sum(axis=1, keepdims=True)

        products.append(product)

    return np.concatenate(products, axis=1)


def _label_columns(label: ArrayLike, num_examples: int) -> NDArray[np.float32]:
    labels = as_array(label, "feature_insight_summary: label").astype(np.float32)
    if labels.ndim not in (1, 2) or len(labels) != num_examples:
        raise ShapeMismatch(
            f"feature_insight_summary: label of shape {list(labels.shape)}, "
            f"expected one of {num_examples} examples"
        )

    return labels if labels.ndim == 2 else labels[:, np.newaxis]


def _check_parts(matrix: NDArray[Any], names: Sequence[str], sizes: Sequence[int]) -> None:
    if len(names) != len(sizes):
        raise ShapeMismatch(f"feature_insight_summary: {len(names)} names, but {len(sizes)} sizes")
    if matrix.ndim != 2 or matrix.shape[1] != sum(sizes):
        raise ShapeMismatch(
            f"feature_insight_summary: inputs of shape {list(matrix.shape)}, "
            f"expected a matrix of {sum(sizes)} columns"
        )


def _head(
    names: Sequence[str],
    sizes: SegmentSizes,
    groups: Sequence[Sequence[str]] | None,
    kind: SummaryKind | None,
) -> dict[str, Any]:
    if len(names) != len(sizes):
        raise ShapeMismatch(f"summary: {len(names)} names, but {len(sizes)} sizes")

    if kind is None:
        are_single = all(isinstance(size, int | np.integer) for size in sizes)
        kind = SummaryKind.GATING if are_single else SummaryKind.SELECTING

    head: dict[str, Any] = {
        "tag_type": kind.value,
        "segment_names": list(names),
        "segment_sizes": [_plain(size) for size in sizes],
    }

    if kind in _GROUPED:
        head["group_index"] = _group_index(names, groups)

    return head


def _plain(size: int | Sequence[int]) -> int | list[int]:
    """A size as JSON has it; those of NumPy are no integers there."""
    if isinstance(size, int | np.integer):
        return int(size)

    return [int(each) for each in size]


def _group_index(names: Sequence[str], groups: Sequence[Sequence[str]] | None) -> list[int]:
    """The group of each name, counted without the groups that have none of them."""
    if groups is None:
        return list(range(len(names)))

    group_of = {}
    for number, group in enumerate(groups):
        for member in group:
            group_of[member] = number

    missing = [name for name in names if name not in group_of]
    if missing:
        raise InvalidRequest(f"summary: {missing} are in no group")

    used = sorted({group_of[name] for name in names})
    return [used.index(group_of[name]) for name in names]


def _summary(
    tag: str, values: NDArray[Any], head: Mapping[str, Any], name: str, description: str
) -> Summary:
    kind = head["tag_type"]
    scope = f"{name}_{kind}" if name else kind
    metadata = json.dumps(head)

    return Summary(f"{scope}/{tag}", values, metadata, description or kind)
