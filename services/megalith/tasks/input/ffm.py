"""Examples for a field-aware factorization machine, made up: the test data of Monolith."""

from collections.abc import Sequence

import numpy as np

from megalith.protos import example_pb2


def slot_to_key(slot: int) -> str:
    return f"feature_{slot}"


def generate_ffm_example(
    vocab_sizes: Sequence[int], length: int = 5, rng: np.random.Generator | None = None
) -> bytes:
    """A serialized tf.train.Example with 1 to `length` ids for each slot.

    The ids of slot i are from max(vocab_sizes) * i on, as many as its vocabulary has. The label is
    a whole number from [0, 1), so it is always 0.
    """
    rng = rng or np.random.default_rng()
    example = example_pb2.Example()
    features = example.features.feature

    label = float(rng.integers(0, 1))
    features["label"].float_list.value.append(label)

    widest = max(vocab_sizes)
    for slot, vocab_size in enumerate(vocab_sizes):
        count = rng.integers(1, length + 1)
        drawn = rng.integers(0, vocab_size, count)
        ids = widest * slot + drawn

        feature = features[slot_to_key(slot)]
        feature.int64_list.value.extend(ids.tolist())

    return example.SerializeToString()
