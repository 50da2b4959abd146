"""What a worker says last."""

from support.servers import Servers
from support.waiting import wait_until


def test_a_worker_tells_the_controller_of_pushes_that_it_gives_up_when_it_stops(
    tmp_path, monkeypatch
):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        worker = servers.start_worker(0, batch_size=64)
        job = servers.connect().controller
        wait_until(lambda: job.status().global_step > 5, 60, "training has begun")
        assert job.status().pushes_unknown == 0
        cluster = worker._cluster
        close = cluster.close

        def close_with_a_push_on_its_way(*, wait):
            cluster._servers._unknown.add(0, "the client was closed without waiting")
            close(wait=wait)

        with monkeypatch.context() as patch:
            patch.setattr(cluster, "close", close_with_a_push_on_its_way)
            worker.stop(0.5)
        assert job.status().pushes_unknown >= 1  # one more if a step was on its way
