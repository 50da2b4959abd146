"""Values of features out of messages: those of a request, and those of a batch in a file."""

from collections.abc import Iterable

from megalith.errors import DtypeMismatch, DuplicateIds
from megalith.protos import prediction_pb2 as pb
from megalith.replica.predicting.served_task import FeatureValues
from megalith.wire import arrays


def features_from_proto(messages: Iterable[pb.FeatureValues]) -> dict[str, FeatureValues]:
    """By name. Row splits are checked when ids are made of the values."""
    features: dict[str, FeatureValues] = {}
    for message in messages:
        name = message.feature
        if name in features:
            raise DuplicateIds(f"feature {name} is given twice")

        features[name] = _values(message)

    return features


def _values(message: pb.FeatureValues) -> FeatureValues:
    what = f"feature {message.feature}"
    if message.integers and message.texts:
        raise DtypeMismatch(f"{what}: its values are integers and text; give one of them")

    splits = None
    if message.row_splits:
        splits = arrays.decode_ids(message.row_splits, f"{what}: row_splits")

    if message.texts:
        return FeatureValues(list(message.texts), splits, message.is_shared)

    integers = arrays.decode_ids(message.integers, f"{what}: values")
    return FeatureValues(integers, splits, message.is_shared)
