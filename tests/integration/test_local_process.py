from contextlib import ExitStack

from megalith.cli.cluster.local_process import LocalProcess
from megalith.runner.plan import PlannedProcess
from support.waiting import wait_until


def test_a_process_is_not_blamed_for_what_an_earlier_one_logged(tmp_path):
    (tmp_path / "ps-0.log").write_text(
        "2026-11-17T03:43:58.5Z WARNING ps-0 megalith.ps: of yesterday\n"
    )
    with ExitStack() as stack:
        process = LocalProcess(PlannedProcess("ps-0", "ps", {"bogus": 1}), tmp_path)
        stack.callback(process.wait_or_kill, 0.0)
        wait_until(lambda: process.poll() is not None, timeout_s=120)
    assert process.last_lines(1).startswith("megalith ps: --bogus is no option")
    assert "yesterday" not in process.logged()
    assert "yesterday" in (tmp_path / "ps-0.log").read_text()
