import numpy as np
import pytest

from megalith.client import (
    V1,
    V2,
    Adagrad,
    AdmissionConfig,
    Feature,
    FirstN,
    Fp16,
    LinearWarmup,
    Ragged,
    Sgd,
    Slice,
)
from megalith.client._features.feature_tables import group_by_table, merged_table_name, table_config
from megalith.errors import DuplicateIds, InvalidRequest, InvalidSetting, TableConflict, WrongSlot

VEC = (Slice("vec", 4),)


def config_of(*features):
    return table_config("t", features, AdmissionConfig(), 0)


def names(groups):
    return {table: [feature.name for feature in group] for table, group in groups.items()}


@pytest.mark.golden("CollectingConfigTest.test_info")
def test_neighbouring_equal_slices_are_one_segment():
    schedule = LinearWarmup(0.1, 10)
    feature = Feature(
        "f",
        (
            Slice("a", 5, optimizer=Adagrad(warmup_steps=10)),
            Slice("b", 2, optimizer=Sgd(), schedule=schedule),
            Slice("c", 2, optimizer=Sgd(), schedule=LinearWarmup(0.1, 10)),
            Slice("d", 2, optimizer=Sgd()),
        ),
    )
    assert [segment.dim for segment in feature.segments] == [5, 4, 2]
    assert [feature.columns(name) for name in "abcdx"] == [(0, 5), (5, 7), (7, 9), (9, 11), None]


@pytest.mark.golden("DistributedPsTest.partitioned_layout")
def test_a_merged_table_is_named_by_the_md5_of_its_features():
    assert merged_table_name(["uid"]) == "9871d3a2c554b27151cacf1422eec048"
    assert merged_table_name(["gid", "cid"]) == "c4a398dea30b21551ae4c09454001dba"


def test_features_with_slots_and_equal_slices_are_merged_and_no_others():
    features = (
        Feature("gid", VEC, slot=1),
        Feature("cid", VEC, slot=(2, 3)),
        Feature("uid", (Slice("vec", 5),), slot=4),
        Feature("free", VEC),
        Feature("other", VEC),
    )
    assert names(group_by_table(features, merge=True)) == {
        merged_table_name(["cid", "gid"]): ["cid", "gid"],
        merged_table_name(["uid"]): ["uid"],
        "free": ["free"],
        "other": ["other"],
    }
    assert set(group_by_table(features, merge=False)) == {"gid", "cid", "uid", "free", "other"}


def test_slice_names_do_not_keep_features_apart_but_compressors_do():
    features = (
        Feature("a", (Slice("x", 4),), slot=1),
        Feature("b", (Slice("y", 1), Slice("z", 3)), slot=2),
    )
    assert len(group_by_table(features, merge=True)) == 1
    coarse = Feature("c", (Slice("x", 4, compressor=Fp16()),), slot=3)
    assert len(group_by_table((*features, coarse), merge=True)) == 2


def test_a_named_table_is_shared_also_by_naming_the_other_feature():
    item, history = (
        Feature("item", VEC, slot=2),
        Feature("history", VEC, slot=2, combiner=FirstN(3), table="item"),
    )
    assert names(group_by_table((item, history), merge=True)) == {"item": ["history", "item"]}


def test_features_with_a_slot_in_common_are_not_merged_silently():
    with pytest.raises(TableConflict, match="a and b both have slot 2"):
        group_by_table((Feature("a", VEC, slot=2), Feature("b", VEC, slot=(1, 2))), merge=True)


def test_expiry_and_thresholds_of_merged_features_go_by_slot():
    config = config_of(
        Feature("a", VEC, slot=1, expire_days=7),
        Feature("b", VEC, slot=2, occurrence_threshold=3),
    )
    assert config.features == ("a", "b")
    assert config.expire_days_by_slot == {1: 7, 2: 36500}
    assert config.admission.threshold_by_slot == {1: 0, 2: 3}
    alone = config_of(Feature("c", VEC, expire_days=9, occurrence_threshold=2))
    assert (alone.expire_days, alone.admission.default_threshold) == (9, 2)
    assert config_of(Feature("d", VEC)).admission is None


def test_features_that_cannot_share_a_table_are_refused():
    with pytest.raises(TableConflict, match="a and b have different slices"):
        config_of(Feature("a", VEC, table="t"), Feature("b", (Slice("vec", 5),), table="t"))
    with pytest.raises(TableConflict, match="expire_days is 1 in feature a and 2 in b"):
        config_of(
            Feature("a", VEC, slot=1, expire_days=1), Feature("b", VEC, slot=1, expire_days=2)
        )
    with pytest.raises(TableConflict, match="occurrence_threshold is 0 in feature a and 2 in b"):
        config_of(Feature("a", VEC), Feature("b", VEC, occurrence_threshold=2))


def test_ids_of_another_slot_are_refused():
    feature = Feature("f", VEC, slot=5)
    good = feature.fids([1, 2])
    assert V2.slots(good).tolist() == [5, 5]
    assert feature.stored(Ragged.of(good)).values.tolist() == good.tolist()
    for bad in (V2.pack(6, 1), good[0] | np.int64(-(2**63))):
        with pytest.raises(
            WrongSlot, match=r"feature f: 1 ids are not of slot \[5\]; .*at value 2"
        ):
            feature.stored(Ragged.of(np.array([*good, bad])))
    with pytest.raises(WrongSlot, match=r"not of slot \[5, 7\]"):
        Feature("f", VEC, slot=(5, 7)).stored(Ragged.of(V2.pack([5, 6, 7], 1)))


def test_v1_ids_reach_tables_as_v2_ids_of_the_same_slot():
    feature = Feature("f", VEC, slot=1000, fid_layout=V1)
    stored = feature.stored(Ragged.of(feature.fids([3, 4]))).values
    assert (V2.slots(stored).tolist(), V2.signatures(stored).tolist()) == ([1000, 1000], [3, 4])
    free = Feature("f", VEC, fid_layout=V1)
    assert V2.slots(free.stored(Ragged.of(V1.pack([1, 2], 9))).values).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"slices": ()}, InvalidSetting, "no slices"),
        ({"name": ""}, InvalidSetting, "not empty"),
        ({"name": "a,b"}, InvalidSetting, "without comma"),
        ({"slices": (Slice("v", 1), Slice("v", 2))}, DuplicateIds, "not distinct"),
        ({"slot": 32768}, InvalidSetting, "slot 32768 is outside 0..32767 of layout v2"),
        ({"slot": 1024, "fid_layout": V1}, InvalidSetting, "outside 0..1023 of layout v1"),
        ({"table": ""}, InvalidSetting, "table is empty"),
    ],
)
def test_features_that_cannot_be_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        Feature(**({"name": "f", "slices": VEC} | changes))


def test_slices_that_cannot_be_are_refused():
    for build in (
        lambda: Slice("a.b", 1),
        lambda: Slice("", 1),
        lambda: Slice("a", 0),
        lambda: FirstN(0),
    ):
        with pytest.raises(InvalidSetting):
            build()
    with pytest.raises(InvalidRequest, match="it has 2 slots"):
        Feature("f", VEC, slot=(1, 2)).fids([1])
