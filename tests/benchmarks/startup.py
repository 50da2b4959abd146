"""How long each service takes from its start to SERVING, with a cold and a warm kernel cache."""

import tempfile
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from report import report

from megalith.wire.channel import open_channel
from support.processes import Processes
from support.waiting import wait_until


def seconds_to_serving(start):
    """Start a process and wait until its health check answers SERVING."""
    began = time.perf_counter()
    process = start()
    address = process.reported("address")
    with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def is_serving():
            try:
                return (
                    stub.Check(health_pb2.HealthCheckRequest(), timeout=1).status
                    == health_pb2.HealthCheckResponse.SERVING
                )
            except grpc.RpcError:
                return False

        wait_until(is_serving, 120)
    return time.perf_counter() - began


def measure(cache_dir, cache):
    environ = {"NUMBA_CACHE_DIR": str(cache_dir)}
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        model_dir = processes.model_dir
        ports = {"model_dir": model_dir, "port": 0, "metrics_port": 0}
        services = {
            "controller": ports,
            "ps": {"model_dir": model_dir},
            "worker": {"model_dir": model_dir},
            "appmaster": ports,
        }
        for service, settings in services.items():
            seconds = seconds_to_serving(
                lambda s=service, v=settings: processes.start(s, environ=environ, **v)
            )
            report(f"ready_{service}", seconds, "s", kernel_cache=cache)


def main():
    with tempfile.TemporaryDirectory() as cache_dir:
        for cache in ("cold", "warm"):
            measure(cache_dir, cache)


if __name__ == "__main__":
    main()
