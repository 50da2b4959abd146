"""Ranks as processes: started by mpirun, or as torchrun would."""

import json
import os
import subprocess
import sys
from pathlib import Path

from megalith.runner.free_ports import free_ports
from support.pages import ROOT

LIMIT_S = 150
BIN = Path(sys.executable).parent
_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
}


def environ_of_ranks(**more):
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    python_path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **_MPI, "PATH": path, "PYTHONPATH": python_path, **more}


def mpirun(size, *command, timeout_s=LIMIT_S, environ=()):
    """A command on so many ranks; what has become of it."""
    return subprocess.run(
        [BIN / "mpirun", "-n", str(size), "--oversubscribe", "--bind-to", "none", *command],
        env=environ_of_ranks(**dict(environ)),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def program(task, options=None, **settings):
    """The command of a rank that trains a task of `sync_tasks`."""
    texts = [json.dumps(options or {}), json.dumps(settings)]
    return [sys.executable, "-m", "support.sync_program", task, *texts]


def gloo(size, command, timeout_s=LIMIT_S):
    """The same by gloo: (exit status, output, errors) of each rank."""
    (port,) = free_ports(1)
    processes = []
    for rank in range(size):
        environ = environ_of_ranks(
            RANK=str(rank),
            WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME="lo",
        )
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)

    done = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=timeout_s)
            done.append((process.returncode, output, errors))
    finally:
        for process in processes:
            process.kill()
    return done


def results(output):
    """What the ranks have printed at their end, in the order in which they came to it."""
    lines = [line.removeprefix("result ") for line in output.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]
