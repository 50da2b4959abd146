"""How the processes of a local job are told about each other where the discovery back end prescribes addresses."""

import json
from collections.abc import Sequence
from dataclasses import replace

from megalith.runner.plan import PlannedProcess
from megalith.runtime.free_ports import free_ports

_HOST = "127.0.0.1"


def wired(discovery: str, planned: Sequence[PlannedProcess]) -> list[PlannedProcess]:
    """The processes, each with the flags or variables by which a platform would tell it who listens where.

    For back ends in which processes register themselves nothing is added.
    """
    if discovery not in ("static", "tf-config", "mlp"):
        return list(planned)
    cluster: dict[str, list[str]] = {}
    for process, port in zip(planned, free_ports(len(planned), _HOST), strict=True):
        cluster.setdefault(process.service, []).append(f"{_HOST}:{port}")
    if discovery == "static":
        listed = ";".join(
            f"{service}={','.join(addresses)}" for service, addresses in cluster.items()
        )
        return [
            replace(process, values=process.values | {"static_cluster": listed})
            for process in planned
        ]
    environ = _tf_config if discovery == "tf-config" else _mlp
    return [replace(process, environ=environ(cluster, process)) for process in planned]


def _tf_config(cluster: dict[str, list[str]], process: PlannedProcess) -> dict[str, str]:
    task = {"type": process.service, "index": process.values.get("index", 0)}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _mlp(cluster: dict[str, list[str]], process: PlannedProcess) -> dict[str, str]:
    variables = {"MLP_ROLE": process.service, "MLP_ROLE_INDEX": str(process.values.get("index", 0))}
    for service, addresses in cluster.items():
        role = service.upper()
        variables[f"MLP_{role}_NUM"] = str(len(addresses))
        for index, address in enumerate(addresses):
            variables[f"MLP_{role}_{index}_HOST"], _, variables[f"MLP_{role}_{index}_PORT"] = (
                address.rpartition(":")
            )
    return variables
