from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from megalith.engine.segments.compressor import RowCodec, segment_codec, zero_rows
from megalith.errors import InvalidSetting, MalformedArray, ShapeMismatch
from megalith.schema.checks import build_named
from megalith.schema.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit
from support.twins.codecs import fixed_r8, stored_bytes

ALL = (Fp32(), Fp16(), FixedR8(0.5), OneBit())


def compressor_named(name, **settings):
    return build_named("compressor", get_args(Compressor), name, settings)


def round_trip(compressor, values):
    values = np.asarray([values], np.float32)
    codec = RowCodec([(compressor, values.shape[1])])
    return codec.decode(codec.encode(values))[0]


@pytest.mark.golden("Fp32FloatCompressorTest.Basic")
def test_fp32_keeps_every_bit():
    np.testing.assert_array_equal(
        round_trip(Fp32(), [0.1, 0.2, 10000]), np.float32([0.1, 0.2, 10000])
    )


@pytest.mark.golden("Fp16FloatCompressorTest.Basic")
def test_fp16_stores_the_nearest_halves():
    np.testing.assert_allclose(
        round_trip(Fp16(), [0.1, 0.2, 10000]), [0.1, 0.2, 10000], rtol=0, atol=1e-4
    )
    encoded = RowCodec([(Fp16(), 3)]).encode(np.float32([[0.1, 0.2, 10000]]))
    np.testing.assert_array_equal(encoded.view("<u2"), [[11878, 12902, 28898]])


@pytest.mark.golden("FixedR8FloatCompressorTest.Basic")
def test_fixed_r8_stores_the_nearest_of_256_steps_within_its_range():
    decoded = round_trip(FixedR8(5.0), [100, 0, 3.5])
    np.testing.assert_allclose(decoded, [5, 0, 3.5], rtol=0, atol=5 / 128)
    np.testing.assert_array_equal(decoded, np.float32([4.9609375, 0, 3.515625]))
    s = np.float32(5 / 128)
    values = np.float32([1.4, 1.6, -1.4, -1.6]) * s
    np.testing.assert_array_equal(round_trip(FixedR8(5.0), values), np.float32([1, 2, -1, -2]) * s)


@pytest.mark.golden("FakeQuantizer.Quantization")
def test_fixed_r8_stores_nan_as_zero_and_stays_below_its_range():
    high, zero, missing = round_trip(FixedR8(5.0), [100, 0, np.nan])
    assert high < 5
    assert zero == 0
    assert missing == 0


@pytest.mark.golden("OneBitFloatCompressorTest.Basic")
def test_one_bit_stores_the_sign_and_zero_as_minus():
    decoded = round_trip(OneBit(amplitude=1.0), [100, 0.1, 1e-5, 0, -1e-5, -0.1, -100])
    np.testing.assert_array_equal(decoded, [1, 1, 1, -1, -1, -1, -1])


@pytest.mark.golden("CombinedFloatCompressorTest.Basic")
def test_segments_of_halves_are_stored_one_after_the_other():
    codec = RowCodec([(Fp16(), 1), (Fp16(), 2)])
    np.testing.assert_array_equal(codec.decode(codec.encode(np.float32([[1, 2, 3]]))), [[1, 2, 3]])
    assert codec.row_bytes == 6


@pytest.mark.golden("ServingEntryAccessorTest.Update")
def test_a_serving_row_is_exact_in_fp32_and_close_in_fp16():
    values = [0.1, 0.2, 0.3]
    np.testing.assert_array_equal(round_trip(Fp32(), values), np.float32(values))
    np.testing.assert_allclose(round_trip(Fp16(), values), values, rtol=0, atol=1e-4)


def test_segments_follow_each_other_without_padding():
    """A byte before them puts the halves and floats at odd addresses."""
    codec = RowCodec([(FixedR8(1.0), 1), (Fp16(), 3), (OneBit(amplitude=0.5), 2), (Fp32(), 2)])
    assert codec.row_bytes == 1 + 6 + 2 + 8
    row = np.float32([[0.5, 1, 2, 3, -7, 7, 0.1, 0.2]])
    np.testing.assert_array_equal(
        codec.decode(codec.encode(row)), np.float32([[0.5, 1, 2, 3, -0.5, 0.5, 0.1, 0.2]])
    )


def test_halves_are_those_of_numpy_bit_by_bit():
    """Every half and the points around the middle between it and the next: nearest even,
    infinities, subnormals."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    exact = halves[np.isfinite(halves)].astype(np.float32)
    between = (np.sort(exact)[1:] + np.sort(exact)[:-1]) / 2
    extremes = np.float32(
        [65519.99, 65520, 1e38, -1e38, np.inf, -np.inf, 1e-40, 2**-25, 2**-24, -0.0]
    )
    values = np.concatenate([exact, between, np.nextafter(between, np.float32(np.inf)), extremes])[
        None
    ]
    codec = RowCodec([(Fp16(), values.shape[1])])
    encoded = codec.encode(values)
    np.testing.assert_array_equal(encoded, stored_bytes("fp16", values))
    np.testing.assert_array_equal(
        codec.decode(encoded), encoded.view(np.float16).astype(np.float32)
    )
    assert np.isnan(round_trip(Fp16(), [np.nan]))


@given(
    values=npst.arrays(
        np.float32,
        st.tuples(st.integers(0, 5), st.integers(1, 19)),
        elements=st.floats(-1e5, 1e5, width=32, allow_nan=False),
    ),
    skipped=st.integers(0, 5),
)
@settings(max_examples=60)
@pytest.mark.parametrize("compressor", ALL, ids=lambda compressor: compressor.name)
def test_the_kernels_do_what_their_twins_do(compressor, values, skipped):
    count, dim = values.shape
    codec = RowCodec([(FixedR8(), 1), (compressor, dim)])
    starts = np.arange(count, dtype=np.int64)[::-1] * codec.row_bytes
    starts[skipped : skipped + 1] = -1
    rows = np.full(count * codec.row_bytes, 77, np.uint8)
    codec.encode_into(
        np.concatenate([np.zeros((count, 1), np.float32), values], axis=1), starts, rows
    )
    for i, start in enumerate(starts):
        if start >= 0:
            expected = stored_bytes(
                compressor.name, values[i : i + 1], getattr(compressor, "r", 1.0)
            )[0]
            np.testing.assert_array_equal(rows[start + 1 : start + codec.row_bytes], expected)
    out = np.full((count, dim + 1), 777, np.float32)
    codec.decode_from(rows, starts, out)
    assert not out[skipped : skipped + 1].any()
    if isinstance(compressor, Fp32):
        np.testing.assert_array_equal(out[starts >= 0, 1:], values[starts >= 0])
    if isinstance(compressor, Fp16):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                out[starts >= 0, 1:], values.astype(np.float16)[starts >= 0]
            )
    if isinstance(compressor, OneBit):
        expected = np.where(values > 0, np.float32(0.1), np.float32(-0.1))
        np.testing.assert_array_equal(out[starts >= 0, 1:], expected[starts >= 0])
    if isinstance(compressor, FixedR8):
        expected = fixed_r8(values, 0.5) * (np.float32(0.5) / np.float32(128))
        np.testing.assert_array_equal(out[starts >= 0, 1:], expected[starts >= 0])


@given(
    vectors=npst.arrays(
        np.float32,
        st.tuples(st.integers(0, 6), st.integers(1, 9)),
        elements=st.sampled_from([0.0, -0.0, 1e-30, 1e-20, 1.1e-19, 1e-6, 1.0]).map(np.float32),
    )
)
def test_zero_rows_are_those_whose_squares_add_up_to_no_normal_number(vectors):
    squares = (vectors.astype(np.float64) ** 2).sum(axis=1)
    sure = np.abs(squares / 1.17549435e-38 - 1) > 1e-5
    np.testing.assert_array_equal(zero_rows(vectors)[sure], (squares < 1.17549435e-38)[sure])


@pytest.mark.golden("LinalgUtils.IsAlmostEqual")
def test_a_row_of_a_millionth_is_not_zero_and_one_of_1e_20_is():
    vectors = np.float32([[0, 0], [1e-6, 0], [0, 1], [1e-20, 0], [np.nan, 0], [-0.0, 0]])
    np.testing.assert_array_equal(zero_rows(vectors), [True, False, False, True, False, True])
    assert zero_rows(np.empty((0, 2), np.float32)).shape == (0,)


def test_arrays_that_do_not_fit_are_refused():
    codec = RowCodec([(Fp32(), 2)])
    with pytest.raises(ShapeMismatch, match=r"vectors of shape \(1, 3\), but \(1, 2\)"):
        codec.encode(np.zeros((1, 3), np.float32))
    with pytest.raises(ShapeMismatch, match="a row is 8 bytes"):
        codec.decode(np.zeros((1, 9), np.uint8))
    with pytest.raises(MalformedArray, match="float64"):
        codec.encode(np.zeros((1, 2)))
    with pytest.raises(MalformedArray, match="packed float32"):
        codec.encode(np.zeros((2, 4), np.float32)[:, ::2])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RowCodec([]), "without segments"),
        (lambda: segment_codec(Fp16(), 0), "fp16: a segment of 0 floats"),
        (lambda: FixedR8(0), "r 0 must be above 0"),
        (lambda: FixedR8(float("nan")), "r nan is not finite"),
        (lambda: OneBit(step_size=0), "step_size 0 must be 1 or more"),
        (lambda: OneBit(step_size=1.5), r"step_size 1\.5 is not an integer"),
        (lambda: OneBit(amplitude=-1), "amplitude -1 must be above 0"),
        (
            lambda: compressor_named("zip"),
            "unknown compressor 'zip'; known are fixed_r8, fp16, fp32, one_bit",
        ),
        (lambda: compressor_named("fp16", r=1), "fp16: unknown settings r; it has none"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(InvalidSetting, match=message):
        build()
