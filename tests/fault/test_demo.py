"""`megalith demo realtime` as a reader runs it: figures come, and nothing is left behind."""

import re
import signal
import subprocess
import sys
import time

import pytest

from support.processes import arguments_of, children_of, is_gone
from support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def start(folder, *words):
    command = [sys.executable, "-m", "megalith", "demo", "realtime", "--events-per-s", "1000"]
    return subprocess.Popen(
        [*command, "--model-dir", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def descendants(pid):
    found = children_of(pid)
    for child in list(found):
        found += descendants(child)
    return found


def lines_of(text):
    return [line.split() for line in text.splitlines() if re.match(r" +\d+ ", line)]


def test_the_figures_grow_and_the_demo_ends_after_its_seconds(tmp_path):
    demo = start(tmp_path, "--seconds", "6")
    printed, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, printed
    first, *_, last = lines_of(printed)
    seconds, events, trained, auc = last[:4]
    assert float(seconds) >= 6
    assert int(first[1].replace(",", "")) < int(events.replace(",", ""))
    assert 0 < int(trained.replace(",", "")) <= int(events.replace(",", ""))
    assert 0.5 < float(auc) < 1.0


def test_ctrl_c_ends_every_process_of_the_demo(tmp_path):
    demo = start(tmp_path)
    printed = []
    while not lines_of("".join(printed)):
        line = demo.stdout.readline()
        assert line, "".join(printed)
        printed.append(line)

    started = [pid for pid in descendants(demo.pid) if arguments_of(pid)]
    assert len(started) >= 7  # the job, its controller, 2 ps, a worker, 2 replicas
    demo.send_signal(signal.SIGINT)
    sent = time.monotonic()
    wait_until(lambda: time.monotonic() > sent + 0.01)
    demo.send_signal(signal.SIGINT)  # as `timeout -s INT` does: to the process and to its group
    rest, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, rest
    assert "Traceback" not in rest
    wait_until(lambda: all(is_gone(pid) for pid in started))
    again = start(tmp_path, "--seconds", "1")
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 1
    assert "has files of another run" in said
