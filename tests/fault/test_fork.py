"""A client in a forked child is another client, with connections of its own.

Its parent's goes on.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import support
from support.processes import Processes

SCENARIOS = Path(next(iter(support.__path__))) / "forked.py"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("fork")) as processes:
        processes.start_controller(num_ps=2, num_workers=0)
        for index in range(2):
            processes.start_member("ps", index)
        processes.job().routing()
        yield processes.model_dir


def run(scenario, model_dir):
    done = subprocess.run(
        [sys.executable, str(SCENARIOS), scenario, str(model_dir)],
        capture_output=True,
        text=True,
        timeout=150,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_row_pushed_to_by_child_and_parent_is_11_0_in_4_of_4_runs(model_dir):
    run("row_is_the_sum", model_dir)


def test_pulls_of_parent_and_children_at_once_return_each_one_s_own_rows(model_dir):
    run("pulls_are_each_process_s_own", model_dir)


def test_unary_pulls_of_parent_and_children_at_once_return_each_one_s_own_rows(model_dir):
    run("unary_pulls_are_each_process_s_own", model_dir)


def test_pushes_of_several_processes_at_once_add_up(model_dir):
    run("sums_of_all_processes_are_right", model_dir)


def test_a_fork_while_threads_are_inside_calls_harms_neither_process(model_dir):
    run("forks_beside_busy_threads", model_dir)


def test_items_read_ahead_and_background_calls_stay_with_their_process(model_dir):
    run("work_in_the_background_is_each_process_s_own", model_dir)


def test_what_the_parent_began_is_not_settled_by_its_child(model_dir):
    run("what_the_parent_began_is_the_parent_s", model_dir)


def test_workers_of_a_torch_data_loader_use_the_parent_s_client_and_module(model_dir):
    pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")
    run("torch_workers_look_up", model_dir)
