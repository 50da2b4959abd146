import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.client import Clip, GradientRecipe, clip_by_global_norm, errors

INF, NAN = np.inf, np.nan


def clipped(arrays, clip, **options):
    given = [np.array(array, np.float32) for array in arrays]
    before = [array.copy() for array in given]
    outs, norm = clip_by_global_norm(given, clip, **options)
    for array, old in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, old)
    return [out.tolist() for out in outs], norm


@pytest.mark.golden("G31", "ClipOpsTest.test_clip_by_global_norm")
def test_gradients_of_norm_5_are_scaled_to_norm_4():
    outs, norm = clipped([[-3, 0, 0], [4, 0, 0]], 4.0)
    np.testing.assert_allclose(outs, [[-2.4, 0, 0], [3.2, 0, 0]], rtol=1e-6)
    assert norm == 5


@pytest.mark.golden("G31")
def test_gradients_of_uneven_shapes_are_scaled_together():
    outs, norm = clipped([[-3, 0, 0], [0, 0, 4, 0]], 4.0)
    np.testing.assert_allclose(outs[0], [-2.4, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(outs[1], [0, 0, 3.2, 0], rtol=1e-6)
    assert norm == 5


@pytest.mark.golden("G31")
def test_within_the_norm_nothing_changes():
    outs, norm = clipped([[1, 0, 0], [1, 0, 0]], 4.0)
    assert outs == [[1, 0, 0], [1, 0, 0]]
    assert norm == pytest.approx(np.sqrt(2))


@pytest.mark.golden("G31")
def test_zeros_stay_zeros():
    assert clipped([[0, 0, 0], [0, 0, 0]], 4.0) == ([[0, 0, 0], [0, 0, 0]], 0.0)


@pytest.mark.golden("G31")
def test_infinities_become_nan():
    outs, norm = clipped([[INF] * 3] * 2, 4.0)
    assert np.isnan(outs).all()
    assert norm == INF


@pytest.mark.golden("G31")
def test_a_large_list_equals_the_formula():
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(rng.integers(1, 50, rng.integers(1, 4))).astype(np.float32)
        for _ in range(53)
    ]
    outs, norm = clip_by_global_norm(arrays, 1.0)
    flat = np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
    assert norm == pytest.approx(np.linalg.norm(flat), rel=1e-6)
    np.testing.assert_allclose(
        np.concatenate([out.ravel() for out in outs]), flat / np.linalg.norm(flat), rtol=1e-5
    )


def test_one_infinity_makes_the_finite_ones_zero_and_itself_nan():
    np.testing.assert_array_equal(clipped([[INF, 1], [2, 3]], 4.0)[0], [[NAN, 0], [0, 0]])


def test_with_a_nan_everything_is_returned_as_it_is():
    outs, norm = clipped([[NAN, 100], [100, 100]], 4.0)
    np.testing.assert_array_equal(outs, [[NAN, 100], [100, 100]])
    assert np.isnan(norm)


def test_an_empty_list_has_norm_zero_and_anything_but_a_list_is_a_type_error():
    assert clip_by_global_norm([], 4.0) == ([], 0.0)
    for wrong in (np.zeros((2, 2)), (np.zeros(2),), None):
        with pytest.raises(TypeError, match="should be a list"):
            clip_by_global_norm(wrong, 4.0)


def test_a_known_norm_is_used():
    assert clipped([[2, 4]], 1.0, use_norm=2.0) == ([[1, 2]], 2.0)


def test_large_gradients_do_not_overflow_the_norm():
    outs, norm = clipped([[3e30, 4e30]], 5.0)
    np.testing.assert_allclose(outs, [[3, 4]], rtol=1e-6)
    assert norm == pytest.approx(5e30, rel=1e-6)


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=5), max_size=5), st.floats(0.1, 10)
)
def test_the_result_never_exceeds_the_norm_and_keeps_its_direction(lists, clip):
    arrays = [np.array(values, np.float32) for values in lists]
    outs, norm = clip_by_global_norm(arrays, clip)
    after = np.sqrt(sum(float(np.square(out, dtype=np.float64).sum()) for out in outs))
    assert after <= max(clip, 0) * (1 + 1e-5)
    for array, out in zip(arrays, outs, strict=True):
        np.testing.assert_allclose(out * max(norm / clip, 1), array, rtol=1e-4, atol=1e-4)


DENSE, SPARSE = {"w": [3.0]}, {"t": [[4.0, 0.0]]}


@pytest.mark.parametrize(
    ("settings", "step", "dense", "sparse"),
    [
        ({}, 0, 3.0, 4.0),  # no clip norm
        ({"clip": Clip.NONE, "clip_norm": 1.0}, 0, 3.0, 4.0),
        ({"clip_norm": 2.5}, 0, 1.5, 2.0),  # one norm of 5
        ({"clip_norm": 2.5, "sparse_clip_norm": 1.25}, 0, 1.5, 1.0),
        ({"clip_norm": 2.5, "sparse_norm_warmup_steps": 4}, 0, 1.5, 0.0),
        ({"clip_norm": 2.5, "sparse_norm_warmup_steps": 4}, 1, 1.5, 0.5),
        ({"clip_norm": 2.5, "sparse_norm_warmup_steps": 4}, 9, 1.5, 2.0),
        ({"clip": Clip.BY_DENSE_AND_SPARSE, "clip_norm": 1.5}, 0, 1.5, 4.0),
        (
            {"clip": Clip.BY_DENSE_AND_SPARSE, "clip_norm": 1.5, "sparse_clip_norm": 1.0},
            0,
            1.5,
            1.0,
        ),
        ({"clip": Clip.BY_NORM, "clip_norm": 3.5}, 0, 3.0, 3.5),
        ({"clip": Clip.BY_VALUE, "clip_norm": 2.0}, 0, 2.0, 2.0),
        ({"dense_reduce_mean": True}, 0, 1.5, 4.0),
        ({"dense_weight_decay": 0.5, "clip_norm": 2.5}, 0, 1.5 + 0.5 * 10, 2.0),  # after clipping
    ],
)
def test_the_recipe_of_tables_md_3_7(settings, step, dense, sparse):
    prepared, rows = GradientRecipe(**settings).prepare(
        DENSE, SPARSE, values={"w": [10.0]}, batch_size=2, step=step
    )
    np.testing.assert_allclose(prepared["w"], [dense], rtol=1e-6)
    np.testing.assert_allclose(rows["t"], [[sparse, 0.0]], rtol=1e-6)
    assert (DENSE, SPARSE) == ({"w": [3.0]}, {"t": [[4.0, 0.0]]})


def test_what_a_recipe_needs_and_does_not_get_is_named():
    with pytest.raises(errors.InvalidRequest, match="batch size"):
        GradientRecipe(dense_reduce_mean=True).prepare(DENSE, SPARSE)
    with pytest.raises(errors.InvalidRequest, match="value of variable w"):
        GradientRecipe(dense_weight_decay=1.0).prepare(DENSE, SPARSE)
    with pytest.raises(errors.ShapeMismatch, match="variable w is"):
        GradientRecipe(dense_weight_decay=1.0).prepare(DENSE, SPARSE, values={"w": [1.0, 2.0]})
    for wrong in (
        {"clip_norm": -1.0},
        {"sparse_norm_warmup_steps": -1},
        {"dense_weight_decay": -1.0},
    ):
        with pytest.raises(errors.InvalidSetting):
            GradientRecipe(**wrong)


@pytest.mark.parametrize("clip_norm", [-1.0, float("nan")])
def test_a_limit_that_would_turn_gradients_round_is_refused(clip_norm):
    with pytest.raises(errors.InvalidSetting, match="clip_norm"):
        clip_by_global_norm([np.ones(3, np.float32)], clip_norm)
