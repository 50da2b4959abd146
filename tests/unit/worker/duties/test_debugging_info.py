"""What the chief writes about its job, for tools of Monolith."""

import json
import logging

from megalith.client import Segment, Sgd, TableConfig, Zeros
from megalith.protos import debugging_info_pb2 as pb
from megalith.worker.duties import debugging_info

TABLE = TableConfig("feature", (Segment(5, Zeros(), Sgd(1.0)),))


def test_both_files_say_the_same_and_are_replaced(tmp_path):
    for workers in (1, 3):
        debugging_info.write(str(tmp_path), "chief:1", ("ps:1", "ps:2"), workers, (TABLE,))
    # Tags and types as Monolith's tools know them.
    data = (tmp_path / "debugging_info.pb").read_bytes()
    cluster = b"\x0a\x07chief:1" + b"\x12\x04ps:1" + b"\x12\x04ps:2"
    head = b"\x0a" + bytes([len(cluster)]) + cluster + b"\x10\x03" + b"\x1a"
    assert data.startswith(head)
    info = pb.DebuggingInfo.FromString(data)
    (described,) = info.feature_name_configs
    assert described.feature_name == "feature"
    assert json.loads(described.config_str)["segments"][0]["dim"] == 5
    text = json.loads((tmp_path / "debugging_info.json").read_text())
    assert text["cluster"] == {"chief_addr": "chief:1", "ps_addrs": ["ps:1", "ps:2"]}
    assert text["num_workers"] == 3


def test_what_cannot_be_written_is_a_warning(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    debugging_info.write(str(tmp_path / "gone"), "c:1", (), 1, (TABLE,))
    assert "debugging_info.pb is not written" in caplog.text
    debugging_info.write("", "c:1", (), 1, (TABLE,))
    debugging_info.write("s3://bucket/model", "c:1", (), 1, (TABLE,))
    assert list(tmp_path.iterdir()) == []
