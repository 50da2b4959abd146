"""Features and layouts as the text of a `FeatureConfigs` message, and back.

The text says what a program has to know that makes batches, or reads what a model sees: names,
widths, slots, pooling and shapes. How rows start and learn stays with the program that trains.
"""

from collections.abc import Callable, Mapping, Sequence

from google.protobuf import text_format

from megalith.client._features.combiners import Combiner, FirstN, Mean, Sqrtn, Sum
from megalith.client._features.feature import Feature, Slice
from megalith.client._features.feature_layouts import FeatureLayouts
from megalith.client._features.layout import Columns, Layout, LayoutPart, OutType, Plan, plan
from megalith.errors import InvalidSetting
from megalith.protos import feature_configs_pb2 as pb
from megalith.schema.checks import require
from megalith.schema.fids import V1, V2

_POOLINGS: dict[type[Combiner], pb.Pooling.ValueType] = {
    Sum: pb.POOLING_SUM,
    Mean: pb.POOLING_MEAN,
    FirstN: pb.POOLING_FIRST_N,
    Sqrtn: pb.POOLING_SQRTN,
}
_OUT_TYPES = {
    OutType.CONCAT: pb.OUT_TYPE_CONCAT,
    OutType.STACK: pb.OUT_TYPE_STACK,
    OutType.ADD_N: pb.OUT_TYPE_ADD_N,
    OutType.NONE: pb.OUT_TYPE_NONE,
}

# (feature, slice, width) -> the slice with its initializer, optimizer and so on.
MakeSlice = Callable[[str, str, int], Slice]


def _plain_slice(feature: str, name: str, dim: int) -> Slice:
    return Slice(name, dim)


def feature_configs_to_text(
    features: Sequence[Feature], layouts: Mapping[str, Layout] | None = None
) -> str:
    """The features and layouts of a model, as `feature_configs_from_text` reads them.

    Initializers, optimizers, compressors and schedules are not in it.
    """
    checked = FeatureLayouts(features, layouts)
    configs = pb.FeatureConfigs()
    for name, feature in checked.features.items():
        written = _feature_to_proto(feature)
        configs.features[name].CopyFrom(written)

    for name, layout in checked.layouts.items():
        its_plan = plan(name, layout, checked.features)
        config = _layout_to_proto(layout, its_plan)
        configs.layouts[name].CopyFrom(config)

    return text_format.MessageToString(configs)


def feature_configs_from_text(
    text: str, make_slice: MakeSlice = _plain_slice
) -> tuple[list[Feature], dict[str, Layout]]:
    """(features, layouts) of such a text. InvalidSetting if they do not fit together.

    `make_slice(feature, slice, dim)` returns the slice with what the text does not say. As it
    stands rows start at zero and learn by Adagrad.
    """
    configs = pb.FeatureConfigs()
    try:
        text_format.Parse(text, configs)
    except text_format.ParseError as error:
        raise InvalidSetting(f"the text is no FeatureConfigs: {error}") from error

    features = {}
    for name in sorted(configs.features):
        features[name] = _feature_from_proto(name, configs.features[name], make_slice)

    layouts = {}
    for name in sorted(configs.layouts):
        layouts[name] = _layout_from_proto(name, configs.layouts[name], features)

    FeatureLayouts(list(features.values()), layouts)
    return list(features.values()), layouts


def _feature_to_proto(feature: Feature) -> pb.FeatureConfig:
    combiner = feature.combiner
    return pb.FeatureConfig(
        table=feature.table or "",
        pooling=_POOLINGS[type(combiner)],
        max_sequence_length=combiner.n if isinstance(combiner, FirstN) else 0,
        slices=[pb.SliceConfig(name=part.name, dim=part.dim) for part in feature.slices],
        slots=feature.slots,
        has_v1_ids=feature.fid_layout is V1,
        occurrence_threshold=feature.occurrence_threshold,
        expire_days=feature.expire_days,
    )


def _feature_from_proto(name: str, config: pb.FeatureConfig, make_slice: MakeSlice) -> Feature:
    slices = []
    for part in config.slices:
        made = make_slice(name, part.name, part.dim)
        require(
            (made.name, made.dim) == (part.name, part.dim),
            f"feature {name}: make_slice returned {made.name} of {made.dim}, "
            f"expected {part.name} of {part.dim}",
        )
        slices.append(made)

    slots = tuple(config.slots)
    return Feature(
        name,
        tuple(slices),
        slot=slots[0] if len(slots) == 1 else slots,
        combiner=_combiner(name, config),
        occurrence_threshold=config.occurrence_threshold,
        expire_days=config.expire_days,
        table=config.table or None,
        fid_layout=V1 if config.has_v1_ids else V2,
    )


def _combiner(name: str, config: pb.FeatureConfig) -> Combiner:
    match config.pooling:
        case pb.POOLING_SUM:
            return Sum()
        case pb.POOLING_MEAN:
            return Mean()
        case pb.POOLING_SQRTN:
            return Sqrtn()
        case pb.POOLING_FIRST_N:
            return FirstN(config.max_sequence_length)

    raise InvalidSetting(f"feature {name}: it has no pooling, such as POOLING_SUM")


def _layout_to_proto(layout: Layout, its_plan: Plan) -> pb.OutConfig:
    parts = []
    for target in its_plan.targets:
        columns = pb.ColumnsConfig(
            feature=target.feature,
            start=target.first,
            end=target.first + target.width,
        )
        parts.append(columns)

    shapes = [pb.Shape(dims=[-1, *shape]) for shape in its_plan.shapes]
    return pb.OutConfig(
        out_type=_OUT_TYPES[layout.out_type],
        parts=parts,
        shapes=shapes,
    )


def _layout_from_proto(name: str, config: pb.OutConfig, features: Mapping[str, Feature]) -> Layout:
    by_number = {number: out_type for out_type, number in _OUT_TYPES.items()}
    out_type = by_number.get(config.out_type)
    if out_type is None:
        raise InvalidSetting(f"layout {name}: it has no out_type, such as OUT_TYPE_CONCAT")

    parts = tuple(_part(part, features) for part in config.parts)
    layout = Layout(out_type, parts)

    its_plan = plan(name, layout, features)
    expected = [[-1, *shape] for shape in its_plan.shapes]
    stated = [list(shape.dims) for shape in config.shapes]

    require(
        not stated or stated == expected,
        f"layout {name}: its shapes are stated as {stated}, but its parts give {expected}",
    )

    return layout


def _part(config: pb.ColumnsConfig, features: Mapping[str, Feature]) -> LayoutPart:
    """By the name of a slice that has just these columns, if there is one."""
    feature = features.get(config.feature)
    columns = (config.start, config.end)
    if feature is not None:
        for part in feature.slices:
            if feature.columns(part.name) == columns:
                return f"{feature.name}.{part.name}"

    return Columns(config.feature, *columns)
