"""What pip installs runs, or says in one line which extra it needs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(program, *arguments, executable=sys.executable):
    done = subprocess.run(
        [executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("hidden", "module"),
    [
        ("click", "megalith"),
        ("grpc_health", "megalith.ps"),
        ("prometheus_client", "megalith.controller"),
        ("grpc_reflection", "megalith.worker"),
        ("prometheus_client", "megalith.appmaster"),
    ],
)
def test_a_command_without_its_extra_is_one_line_that_names_it(hidden, module):
    program = f"import runpy, sys; sys.modules[{hidden!r}] = None; runpy.run_module({module!r}, run_name='__main__')"
    status, out, err = python(program, "--help")
    assert (status, out) == (1, "")
    assert err == (
        f"megalith: No module named {hidden!r}: it comes with the extra [services]; "
        "install it with pip install 'megalith[services]', or in a clone pip install '.[services]'\n"
    )


def test_torch_without_its_extra_is_an_import_error_that_names_it():
    status, _, err = python("import sys; sys.modules['torch'] = None; import megalith.torch")
    assert status == 1
    assert err.splitlines()[-1] == (
        "ImportError: No module named 'torch': it comes with the extra [torch]; "
        "install it with pip install 'megalith[torch]', or in a clone pip install '.[torch]'"
    )


@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.4])
def test_ctrl_c_during_the_imports_of_the_command_leaves_no_traceback(tmp_path, after_s):
    # A shell that starts the tests in the background has them ignore SIGINT, and children inherit
    # that.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from megalith.cli.entry import main; print('on', flush=True); main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, "up", "--model-dir", str(tmp_path), "--workers", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "on\n"
            time.sleep(after_s)  # somewhere in the imports, or after them: both must be clean
            os.kill(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "Traceback" not in err
    assert process.returncode in (-signal.SIGINT, 0, 130)


def test_ctrl_c_while_the_controller_starts_has_nothing_to_save_and_is_no_failure(tmp_path):
    words = ["-m", "megalith", "up", "--model-dir", str(tmp_path), "--workers", "0"]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().startswith("starting controller")
            os.kill(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()

    assert said.splitlines()[-1] == "stopping; nothing was trained"
    assert "save" not in said
    assert process.returncode == 0


@pytest.fixture
def install(tmp_path):
    """Make a virtual environment with what `pip install <what>` gives; returns its bin folder."""

    def make(*what):
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
        pip = [
            tmp_path / "venv/bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *what], check=True, timeout=1500)
        return tmp_path / "venv" / "bin"

    return make


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_plain_install_has_the_sdk_and_says_what_the_rest_needs(install):
    folder = install(str(ROOT))
    assert python("import megalith.client", executable=folder / "python")[0] == 0
    done = subprocess.run(
        [folder / "megalith", "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install '.[services]'" in done.stderr
    done = subprocess.run(
        [folder / "python", "-m", "megalith.ps"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "extra [torch]" in python("import megalith.torch", executable=folder / "python")[2]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_install_with_services_trains(install, tmp_path):
    folder = install(f"{ROOT}[services]")
    job = [
        "train",
        "clicks",
        "--model-dir",
        tmp_path / "model",
        "--num-examples",
        "20000",
        "--ps",
        "1",
    ]
    done = subprocess.run(
        [folder / "megalith", *job], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    discovery = ["ps", "--discovery", "zookeeper://h:1/j"]
    done = subprocess.run(
        [folder / "megalith", *discovery], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install '.[zookeeper]'" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_install_with_services_and_torch_has_both(install):
    folder = install(f"{ROOT}[services,torch]", "torch==2.13.0")
    assert (
        python(
            "import megalith.torch, torch; print(torch.__version__)", executable=folder / "python"
        )[0]
        == 0
    )
    done = subprocess.run(
        [folder / "megalith", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("megalith ")


def test_a_torch_task_without_services_is_an_import_error_and_embeddings_work():
    hidden = "import sys; sys.modules['pyarrow'] = None; "
    status, _, err = python(f"{hidden}from megalith.torch import ClusterEmbedding")
    assert (status, err) == (0, "")
    status, _, err = python(f"{hidden}from megalith.torch import TorchTask")
    assert status == 1
    assert "ImportError: No module named 'pyarrow': it comes with the extra [services]" in err
