"""Which features share a table, what it is called, and what it looks like."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from megalith.client._features.feature import KEPT_DAYS, Feature
from megalith.errors import TableConflict
from megalith.schema import AdmissionConfig, Segment, TableConfig


def merged_table_name(features: Iterable[str]) -> str:
    """The name of a table of merged features: md5 of their sorted names.

    Another set of features is another table.
    """
    names = ",".join(sorted(features))
    return hashlib.md5(names.encode(), usedforsecurity=False).hexdigest()


def group_by_table(features: Sequence[Feature], merge: bool) -> dict[str, tuple[Feature, ...]]:
    """Features by the name of their table, both sorted by name.

    A feature with a `table` lives there, and so does the feature of that name. With `merge`, others
    with slots and equal segments live together: their slots keep their ids apart, so slots in
    common are TableConflict. What is left has a table of its own name.
    """
    groups: dict[str, list[Feature]] = {}
    by_layout: dict[tuple[Segment, ...], list[Feature]] = {}
    shared = {feature.table for feature in features}
    in_order = sorted(features, key=lambda feature: feature.name)

    for feature in in_order:
        is_free = feature.table is None and feature.name not in shared

        if merge and feature.slots and is_free:
            equals = by_layout.setdefault(feature.segments, [])
            equals.append(feature)
        else:
            table = feature.table or feature.name
            group = groups.setdefault(table, [])
            group.append(feature)

    for merged in by_layout.values():
        _check_slots_apart(merged)
        table = merged_table_name(feature.name for feature in merged)
        group = groups.setdefault(table, [])
        group.extend(merged)

    return {table: tuple(groups[table]) for table in sorted(groups)}


def table_config(
    name: str, features: Sequence[Feature], admission: AdmissionConfig, memory_budget_bytes: int
) -> TableConfig:
    """The table of these features.

    Expiry and thresholds go by slot, so that features in one table keep their own.
    """
    first, *others = features
    for feature in others:
        if feature.segments != first.segments:
            raise TableConflict(
                f"table {name}: features {first.name} and {feature.name} "
                "have different slices; features that share a table have equal ones"
            )

    expire_days, expire_days_by_slot = _by_slot(name, features, "expire_days", KEPT_DAYS)
    threshold, threshold_by_slot = _by_slot(name, features, "occurrence_threshold", 0)

    filtered: AdmissionConfig | None = None
    if threshold or any(threshold_by_slot.values()):
        filtered = replace(
            admission,
            default_threshold=threshold,
            threshold_by_slot=threshold_by_slot,
        )

    return TableConfig(
        name,
        first.segments,
        expire_days=expire_days,
        expire_days_by_slot=expire_days_by_slot,
        memory_budget_bytes=memory_budget_bytes,
        features=tuple(feature.name for feature in features),
        admission=filtered,
    )


def _by_slot(
    table: str, features: Sequence[Feature], field: str, default: int
) -> tuple[int, Mapping[int, int]]:
    """A setting of features without slots (or `default`), and of each slot.

    TableConflict where two disagree.
    """
    values: dict[int | None, tuple[int, str]] = {}
    for feature in features:
        value: int = getattr(feature, field)

        for slot in feature.slots or (None,):
            known, other = values.setdefault(slot, (value, feature.name))
            if known != value:
                raise TableConflict(
                    f"table {table}: {field} is {known} in feature {other} "
                    f"and {value} in {feature.name}; "
                    "features with the same ids have the same one"
                )

    without_slot, _ = values.pop(None, (default, ""))

    by_slot: dict[int, int] = {}
    for slot, (value, _) in values.items():
        assert slot is not None  # taken out above
        by_slot[slot] = value

    return without_slot, by_slot


def _check_slots_apart(features: Sequence[Feature]) -> None:
    owners: dict[int, str] = {}
    for feature in features:
        for slot in feature.slots:
            other = owners.setdefault(slot, feature.name)
            if other != feature.name:
                raise TableConflict(
                    f"features {other} and {feature.name} both have slot {slot} and equal slices; "
                    "give both the same `table` to share rows, or merge=False for a table each"
                )
