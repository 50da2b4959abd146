"""Which targets a ps has, and under which model."""

import pytest

from megalith.errors import InvalidSetting
from megalith.ps.syncing.settings import SyncSettings
from megalith.ps.syncing.targets import Target


@pytest.mark.golden("ParameterSyncOpsTest.test_refresh_sync_config_1")
def test_without_a_model_name_the_model_is_that_of_the_shard():
    settings = SyncSettings(sync_targets="localhost:8500")
    [target] = settings.targets(1)
    config = settings.client_config(target.shard, [target.address])
    assert config.model_name == "ps_1"
    assert list(config.targets) == ["localhost:8500"]
    assert config.signature_name == "hashtable_assign"
    assert config.timeout_in_ms == 3000


@pytest.mark.golden("ParameterSyncOpsTest.test_refresh_sync_config_2")
def test_a_model_name_stands_before_the_shard():
    settings = SyncSettings(sync_targets="localhost:8888", sync_model_name="test_ffm_model")
    [target] = settings.targets(1)
    config = settings.client_config(target.shard, [target.address])
    assert config.model_name == "test_ffm_model:ps_1"
    assert list(config.targets) == ["localhost:8888"]


def test_targets_are_sorted_and_each_is_there_once():
    settings = SyncSettings(sync_targets="b:2, a:1,b:2,[::1]:3")
    assert settings.targets(0) == [Target("[::1]:3", 0), Target("a:1", 0), Target("b:2", 0)]


def test_a_target_may_have_one_shard_or_all():
    settings = SyncSettings(sync_targets="ps_1@a:1,b:2", sync_num_ps=2)
    assert settings.targets(5) == [Target("a:1", 1), Target("b:2", 0), Target("b:2", 1)]


def test_a_file_is_read_each_time(tmp_path):
    path = tmp_path / "targets"
    path.write_text("# serving, Frankfurt\na:1\nb:2\n")
    settings = SyncSettings(sync_targets_file=str(path))
    assert settings.targets(3) == [Target("a:1", 3), Target("b:2", 3)]
    path.write_text("#\n")
    assert settings.targets(3) == []


def test_an_empty_file_is_one_that_is_being_written(tmp_path):
    path = tmp_path / "targets"
    path.write_text("a:1\n")
    settings = SyncSettings(sync_targets_file=str(path))
    path.write_text("")
    with pytest.raises(InvalidSetting, match="targets is empty; write a line with #"):
        settings.targets(3)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sync_targets": "nowhere"}, "--sync-targets: 'nowhere' is no target; expected host:port"),
        ({"sync_targets": "a:99999"}, "'a:99999' is no target"),
        ({"sync_targets": "ps_1@a:1"}, "the serving side has 0 shards; --sync-num-ps"),
        ({"sync_targets": "ps_2@a:1", "sync_num_ps": 2}, "has 2 shards"),
        ({"sync_targets": "x@a:1", "sync_num_ps": 2}, "expected ps_ and a number"),
        (
            {"sync_targets_file": "/nowhere/at/all"},
            "--sync-targets-file=/nowhere/at/all: .*No such",
        ),
        ({"sync_targets": "a:1", "sync_targets_file": "x"}, "both given"),
        ({"sync_every_s": 0.0}, "--sync-every-s"),
        ({"sync_timeout_ms": 0}, "--sync-timeout-ms"),
        ({"sync_num_ps": -1}, "--sync-num-ps"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, complaint):
    with pytest.raises(InvalidSetting, match=complaint):
        SyncSettings(**settings)
