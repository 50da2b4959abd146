"""Golden G28, test1, with real processes: what a job leaves behind, and who is alive then."""

import json

import numpy as np
import pytest

from megalith.client import connect
from megalith.protos import debugging_info_pb2
from support.processes import Processes
from support.waiting import wait_until


@pytest.mark.golden("G28")
def test_after_the_job_the_servers_are_alive_and_the_chief_has_said_where(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start_controller(num_ps=1, num_workers=1, stay_up=True)
        ps = processes.start_member("ps", 0, stay_up=True)
        path = {"PYTHONPATH": "tests"}
        worker = processes.start(
            "worker",
            "worker-0",
            path,
            model_dir=processes.model_dir,
            task="support.one_step:make_task",
            join_timeout_s=120,
        )
        assert worker.wait(200) == 0
        wait_until(lambda: "this server stays up" in ps.output())

        with connect(model_dir=str(processes.model_dir), timeout_s=60) as cluster:
            pulled = cluster.pull({"feature": [0, 1, 2]}, variables=["global_step"])
            assert pulled.variables["global_step"] == 1
            expected = np.repeat([[-1.0], [-1.0], [0.0]], 5, axis=1)
            np.testing.assert_array_equal(pulled.rows["feature"], expected)
            assert cluster.table_stats()["feature"].rows == 2  # id 2 has no row
            assert cluster.controller.status().outcome == "succeeded"
        assert ps.poll() is None

        data = (processes.model_dir / "debugging_info.pb").read_bytes()
        info = debugging_info_pb2.DebuggingInfo.FromString(data)
        assert [each.feature_name for each in info.feature_name_configs] == ["feature"]
        assert list(info.cluster.ps_addrs) == [ps.reported("address")]
        assert info.cluster.chief_addr == worker.reported("address")
        assert info.num_workers == 1
        text = json.loads((processes.model_dir / "debugging_info.json").read_text())
        assert text["cluster"]["ps_addrs"] == list(info.cluster.ps_addrs)

        ps.terminate()
        assert ps.wait() == 0
