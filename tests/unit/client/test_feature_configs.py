"""Features and layouts as text, and back."""

import pytest

import megalith.client as mg
from megalith.errors import InvalidSetting, UnknownFeature

ROW = (mg.Slice("bias", 1), mg.Slice("vec", 4))
FEATURES = [
    mg.Feature("user", ROW, slot=3, fid_layout=mg.V1, expire_days=30, occurrence_threshold=2),
    mg.Feature("item", ROW, slot=(4, 5), combiner=mg.Mean()),
    mg.Feature("norm", (mg.Slice("vec", 4),), combiner=mg.Sqrtn(), table="norms"),
    mg.Feature("history", (mg.Slice("vec", 4),), combiner=mg.FirstN(7)),
]
LAYOUTS = {
    "biases": mg.Layout.concat("user.bias", "item.bias"),
    "vectors": mg.Layout.stack("user.vec", "item.vec", "norm"),
    "sum": mg.Layout.add_n(mg.Columns("user", 1, 3), mg.Columns("item", 3, 5)),
    "each": mg.Layout.none("history.vec", "history.vec"),
}


def test_what_the_text_says_comes_back_and_so_do_all_shapes():
    text = mg.feature_configs_to_text(FEATURES, LAYOUTS)
    features, layouts = mg.feature_configs_from_text(text)
    assert sorted(features, key=lambda one: one.name) == sorted(FEATURES, key=lambda one: one.name)
    assert layouts["biases"] == LAYOUTS["biases"]
    assert layouts["sum"] == LAYOUTS["sum"], "no slice has just these columns"
    assert layouts["vectors"] == mg.Layout.stack("user.vec", "item.vec", "norm.vec")
    assert mg.feature_configs_to_text(features, layouts) == text


def test_a_program_says_how_its_slices_learn():
    def learned(feature, name, dim):
        return mg.Slice(name, dim, optimizer=mg.Sgd(0.1 if feature == "user" else 0.2))

    text = mg.feature_configs_to_text(FEATURES[:2])
    features, _ = mg.feature_configs_from_text(text, learned)
    rates = {one.name: one.slices[1].optimizer.learning_rate for one in features}
    assert rates == {"user": 0.1, "item": 0.2}


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        (("POOLING_SUM", "POOLING_UNSPECIFIED"), InvalidSetting, "feature user: it has no pooling"),
        (("OUT_TYPE_CONCAT", "OUT_TYPE_UNSPECIFIED"), InvalidSetting, "it has no out_type"),
        (("dims: 5", "dims: 6"), InvalidSetting, r"stated as \[\[-1, 6\]\].* give \[\[-1, 5\]\]"),
        (("end: 5", "end: 6"), InvalidSetting, "not within the 5 of user"),
        (('feature: "user"', 'feature: "nobody"'), UnknownFeature, "no feature for part"),
        (("features", "things"), InvalidSetting, "the text is no FeatureConfigs: 1:1"),
        (("dim: 1", "dim: 0"), InvalidSetting, "dim"),
    ],
)
def test_a_text_that_does_not_fit_together_is_refused(change, error, complaint):
    text = mg.feature_configs_to_text(FEATURES[:1])
    changed = text.replace(*change)
    assert changed != text
    with pytest.raises(error, match=complaint):
        mg.feature_configs_from_text(changed)


def test_a_slice_of_another_width_is_refused():
    text = mg.feature_configs_to_text(FEATURES[:1])
    with pytest.raises(InvalidSetting, match="make_slice returned bias of 2, expected bias of 1"):
        mg.feature_configs_from_text(text, lambda feature, name, dim: mg.Slice(name, 2 * dim))
