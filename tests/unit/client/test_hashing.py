"""The public hash from raw values to ids, and which ids a feature takes without it."""

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import InvalidRequest

SLICES = (mg.Slice("all", 2),)
MASK = (1 << 64) - 1
GOLDENS = (
    248629889170205,
    159472906176770,
    251622562667365,
    46625482681859,
    214960898665380,
    104632964275611,
    103296467547139,
    63962406715056,
    169311525409719,
    101460835634765,
)


def reference_of(code, bits):
    x = (code + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return (x ^ (x >> 31)) >> (64 - bits)


def fnv1a(data):
    code = 0xCBF29CE484222325
    for byte in data:
        code = ((code ^ byte) * 0x100000001B3) & MASK
    return code


def test_hashes_never_change():
    """Checkpoints hold ids: these numbers are a promise to every model that was trained with
    them."""
    # 0xE220A8397B1DCDAF is the first output of splitmix64 seeded with 0.
    assert mg.hash_ids([0])[0] == 0xE220A8397B1DCDAF >> 16
    assert fnv1a(b"foobar") == 0x85944171F73967E8  # a test vector of FNV
    goldens = {0: GOLDENS[0], 1: GOLDENS[1], -1: GOLDENS[2], 2**63 - 1: GOLDENS[3]}
    assert {value: int(mg.hash_ids([value])[0]) for value in goldens} == goldens
    texts = dict(zip(["", "a", "foobar", "tt0111161", "Zürich", "東京"], GOLDENS[4:], strict=True))
    assert dict(zip(texts, mg.hash_ids(list(texts)).tolist(), strict=True)) == texts


@pytest.mark.parametrize("bits", [1, 24, 48, 54, 63])
def test_hashes_are_what_the_definition_says(bits):
    numbers = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1000)
    assert mg.hash_ids(numbers, bits=bits).tolist() == [
        reference_of(int(n) & MASK, bits) for n in numbers
    ]
    texts = [f"value {number} é" for number in numbers]
    expected = [reference_of(fnv1a(text.encode()), bits) for text in texts]
    assert mg.hash_ids(texts, bits=bits).tolist() == expected
    assert mg.hash_ids(np.array(texts), bits=bits).tolist() == expected
    assert mg.hash_ids(np.array(texts, object), bits=bits).tolist() == expected
    assert mg.hash_ids([text.encode() for text in texts], bits=bits).tolist() == expected


def test_integers_of_any_width_and_shape_hash_by_their_value():
    values = np.array([[0, 1, 2], [100, 101, 102]])
    expected = mg.hash_ids(values)
    assert expected.shape == (2, 3)
    for dtype in (np.int32, np.uint8, np.uint64):
        np.testing.assert_array_equal(mg.hash_ids(values.astype(dtype)), expected)
    assert mg.hash_ids([2**64 - 1])[0] == mg.hash_ids([-1])[0]
    assert mg.hash_ids([]).size == 0


@pytest.mark.parametrize("kind", ["sequential", "multiples", "random", "text"])
def test_as_many_values_collide_as_is_said(kind):
    """At 24 bits of 100,000 values n^2 / 2^25 = 298 pairs are expected, give or take 17."""
    count, bits = 100_000, 24
    values = {
        "sequential": np.arange(count),
        "multiples": np.arange(count) << 40,
        "random": np.random.default_rng(0).integers(0, 2**62, count),
        "text": [f"user-{number}" for number in range(count)],
    }[kind]
    _, uses = np.unique(mg.hash_ids(values, bits=bits), return_counts=True)
    pairs = int((uses * (uses - 1) // 2).sum())
    expected = count**2 / 2 ** (bits + 1)
    assert abs(pairs - expected) < 4 * expected**0.5, pairs


@pytest.mark.parametrize(
    "values",
    [
        [1.5],
        [None],
        ["a", None],
        [True],
        [{}],
        ["\ud800"],
        [-1, 2**64 - 1],
        [2**64],
        [["a"], ["b", "c"]],
    ],
)
def test_what_is_neither_integer_nor_string_is_refused(values):
    with pytest.raises(InvalidRequest, match="hash_ids"):
        mg.hash_ids(values)


@pytest.mark.parametrize("bits", [0, 64, -3])
def test_a_range_that_ids_do_not_have_is_refused(bits):
    with pytest.raises(InvalidRequest, match="bits"):
        mg.hash_ids([1], bits=bits)


@pytest.mark.parametrize("bad", [-1, 2**48, 5 + 2**48, 5 + 2**50, -(2**63), 2**63])
def test_fids_refuses_an_id_that_does_not_fit_and_names_it(bad):
    feature = mg.Feature("item", SLICES, slot=3)
    with pytest.raises(
        InvalidRequest, match=rf"feature item: 1 of 2 ids are outside 0..281474976710655 .*{bad}"
    ):
        feature.fids(np.array([5, bad], np.uint64 if bad > 0 else np.int64))


def test_fids_takes_the_whole_range_of_its_layout():
    for layout, top in ((mg.V2, 2**48 - 1), (mg.V1, 2**54 - 1)):
        feature = mg.Feature("item", SLICES, slot=3, fid_layout=layout)
        fids = feature.fids([0, top])
        assert layout.signatures(fids).tolist() == [0, top]
        assert layout.slots(fids).tolist() == [3, 3]
        with pytest.raises(InvalidRequest):
            feature.fids([top + 1])


def test_hashed_ids_are_of_the_feature_s_slot():
    feature = mg.Feature("item", SLICES, slot=3)
    fids = feature.hashed(["a", "foobar"])
    assert mg.V2.slots(fids).tolist() == [3, 3]
    assert mg.V2.signatures(fids).tolist() == mg.hash_ids(["a", "foobar"]).tolist()
    old = mg.Feature("old", SLICES, slot=3, fid_layout=mg.V1)
    assert mg.V1.signatures(old.hashed([7])).tolist() == mg.hash_ids([7], bits=54).tolist()
    with pytest.raises(InvalidRequest, match="exactly one"):
        mg.Feature("two", SLICES, slot=(1, 2)).hashed([1])
