from pathlib import Path

import pytest

from megalith.checkpoint.directory import catalog, exempt_list, listing
from megalith.checkpoint.storage.location import absolute, locate, name_of, resolved
from megalith.errors import CheckpointNotFound, InvalidSetting


def test_a_path_stays_a_path_and_a_url_becomes_a_place_of_a_store():
    assert locate("models/ctr") == Path("models/ctr")
    assert locate("file:///models/ctr") == Path("/models/ctr")
    place = locate("memory://bucket/models/ctr/")
    assert str(place / "model.ckpt-1") == "memory://bucket/models/ctr/model.ckpt-1"
    assert place.name == name_of("memory://bucket/models/ctr/") == "ctr"
    assert place.parent == locate("memory://bucket/models")
    assert absolute("memory://bucket/x") == "memory://bucket/x"
    assert absolute("x") == str(Path.cwd() / "x")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "names no place"),
        ("s3:/bucket/x", "names no place"),
        ("s3://bucket//x", "names no place"),
        ("s3://bucket/../x", r"knows no \. and no \.\."),
        ("ftp://host/x", "ftp: checkpoints can be on a path of the file system or on s3"),
    ],
)
def test_what_is_no_place_for_checkpoints_is_refused(url, said):
    with pytest.raises(InvalidSetting, match=said):
        locate(url)


def test_names_in_state_files_are_relative_unless_they_are_paths_or_urls(tmp_path):
    store = locate("memory://bucket/ctr")
    assert resolved(tmp_path, "model.ckpt-1") == tmp_path / "model.ckpt-1"
    assert resolved(tmp_path, "/models/model.ckpt-1") == Path("/models/model.ckpt-1")
    assert resolved(store, "model.ckpt-1") == store / "model.ckpt-1"
    assert resolved(store, "/models/model.ckpt-1") == Path("/models/model.ckpt-1")
    assert resolved(tmp_path, "memory://bucket/ctr/model.ckpt-1") == store / "model.ckpt-1"


def test_hdfs_counts_as_absolute_and_is_not_looked_for_beside_the_list(tmp_path):
    (tmp_path / "hdfs:" / "old" / "model.ckpt-1").mkdir(parents=True)
    listing.write(tmp_path, listing.Listing("hdfs:/old/model.ckpt-1").text())
    with pytest.raises(InvalidSetting, match=r"hdfs:/old/model\.ckpt-1"):
        catalog.latest(tmp_path)

    exempt = exempt_list.ExemptList(("hdfs:/old/model.ckpt-7",))
    assert exempt.names == {"model.ckpt-7"}


def test_a_list_may_name_a_checkpoint_of_a_store(tmp_path):
    listing.write(tmp_path, listing.Listing("memory://bucket/ctr/model.ckpt-1").text())
    with pytest.raises(
        CheckpointNotFound, match=r"memory://bucket/ctr/model\.ckpt-1/manifest\.json"
    ):
        catalog.latest(tmp_path)
