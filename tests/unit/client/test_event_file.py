"""Event files, read back by TensorBoard's own reader."""

import sys

import numpy as np
import pytest

from megalith.client import EventFile, errors, feature_insight_summary, nas_summary
from support.full_disk import files_of_at_most

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="needs: pip install 'megalith[tensorboard]'",
)
tensor_util = pytest.importorskip("tensorboard.util.tensor_util")


def read(directory):
    accumulator = event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return accumulator


def test_numbers_come_back_with_their_steps(tmp_path):
    with EventFile(tmp_path / "run") as events:
        events.add(1, scalars={"loss": 0.75, "auc": 0.5})
        events.add(2, scalars={"loss": 0.5})
    found = read(tmp_path / "run")
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 0.75), (2, 0.5)]
    assert [(event.step, event.value) for event in found.Scalars("auc")] == [(1, 0.5)]


@pytest.mark.golden("G17")
def test_summaries_come_back_with_the_metadata_of_the_plugin(tmp_path):
    nas = nas_summary(np.float32([0.5, 0.8]), ["f1", "f2"], [3, 5])
    inputs = np.arange(51, dtype=np.float32).reshape(3, 17)
    weight = np.ones((17, 2), np.float32)
    insight = feature_insight_summary(
        inputs, ["f1", "f2", "f3"], [3, 5, 9], weight=weight, label=[0, 1, 0]
    )
    with EventFile(tmp_path) as events:
        events.add(7, summaries=[nas, insight])

    found = read(tmp_path)
    assert found.Tags()["tensors"] == [
        "gating/monolith_nas_weight",
        "fi_train/monolith_feature_insight",
    ]
    for summary in (nas, insight):
        (event,) = found.Tensors(summary.tag)
        assert event.step == 7
        values = tensor_util.make_ndarray(event.tensor_proto)
        np.testing.assert_array_equal(values, summary.values)

        metadata = found.SummaryMetadata(summary.tag)
        assert metadata.plugin_data.plugin_name == "monolith"
        assert metadata.plugin_data.content == summary.head.encode()
        assert metadata.summary_description == summary.description
        assert metadata.data_class == 2  # a tensor
    assert found.PluginTagToContent("monolith")[nas.tag] == nas.head.encode()


def test_what_was_added_can_be_read_while_the_file_is_open(tmp_path):
    with EventFile(tmp_path) as events:
        events.add(1, scalars={"loss": 1.0})
        assert [event.value for event in read(tmp_path).Scalars("loss")] == [1.0]


def test_two_writers_of_one_directory_have_a_file_each(tmp_path):
    with EventFile(tmp_path) as first, EventFile(tmp_path) as second:
        first.add(1, scalars={"a": 1.0})
        second.add(1, scalars={"b": 2.0})
    assert len(list(tmp_path.iterdir())) == 2


def test_a_summary_that_finds_no_room_costs_none_of_those_after_it(tmp_path):
    large = nas_summary(np.ones(40_000, np.float32), ["all"], [40_000])
    with EventFile(tmp_path) as events:
        events.add(1, scalars={"loss": 1.0})
        with files_of_at_most(100_000), pytest.raises(OSError, match="too large"):
            events.add(2, summaries=[large])

        events.add(3, scalars={"loss": 3.0}, summaries=[large])

    found = read(tmp_path)
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 1.0), (3, 3.0)]
    assert [event.step for event in found.Tensors(large.tag)] == [3]


def test_a_directory_that_is_a_file_is_named(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(errors.InvalidSetting, match=r"cannot be written to .*logs: File exists"):
        EventFile(tmp_path / "logs")


def test_a_directory_that_cannot_be_made_is_named():
    with pytest.raises(errors.InvalidSetting, match="cannot be written to /proc/no-logs: "):
        EventFile("/proc/no-logs")


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(errors.InvalidSetting, match=r"megalith\[tensorboard\]"):
        EventFile(tmp_path)
