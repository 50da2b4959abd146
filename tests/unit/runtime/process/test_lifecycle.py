import subprocess
import sys
import textwrap
import threading

import pytest

from megalith.runtime.process.lifecycle import ExitRequest


def test_the_first_request_decides():
    request = ExitRequest()
    threads = [
        threading.Thread(target=request.request, args=(status, f"reason {status}"))
        for status in range(8)
    ]
    request.request(3, "first")
    for thread in threads:
        thread.start()
    request.wait()
    for thread in threads:
        thread.join()
    assert (request.status, request.reason) == (3, "first")


def run_service(body, exit_with_stdin=False, before=""):
    """(exit status, log) of a process that runs a service with these methods.

    Its standard input stays open.
    """
    program = textwrap.dedent(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from megalith.runtime.process import lifecycle
        {}
        class Service:
            def __init__(self, exit_request):
                self.exit_request = exit_request
        {}
        lifecycle.run("it", Service, log_level="info", exit_with_stdin={})
        """
    ).format(
        textwrap.dedent(before), textwrap.indent(textwrap.dedent(body), "    "), exit_with_stdin
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        process.wait(60)
        return process.returncode, process.stderr.read()


def test_a_stop_that_fails_is_logged_and_still_ends_the_process():
    status, log = run_service(
        """
        def start(self):
            ThreadPoolExecutor(1).submit(threading.Event().wait)  # the interpreter would wait for this thread
            self.exit_request.request(0, "enough")
        def stop(self, grace_s):
            raise RuntimeError("cannot join thread before it is started")
        """
    )
    assert status == 1
    assert "it did not stop cleanly" in log
    assert "RuntimeError: cannot join thread before it is started" in log


def test_a_signal_that_arrives_while_the_service_starts_ends_it_once_it_has_started():
    status, log = run_service(
        """
        def start(self):
            import os, signal, sys
            os.kill(os.getpid(), signal.SIGTERM)
            print("started", file=sys.stderr)
        def stop(self, grace_s):
            import sys
            print("stopped", file=sys.stderr)
        """
    )
    assert status == 0, log
    assert log.index("started") < log.index("it stops: SIGTERM") < log.index("stopped")


def test_who_started_a_process_sees_by_its_status_that_a_signal_stopped_it():
    status, log = run_service(
        """
        def start(self):
            import os, signal
            os.kill(os.getpid(), signal.SIGTERM)
        def stop(self, grace_s):
            pass
        """,
        exit_with_stdin=True,
    )
    assert status == 128 + 15, log
    # nothing has failed
    assert "INFO    it megalith.runtime.process.lifecycle: it stops: SIGTERM" in log


@pytest.mark.golden("G15")
def test_a_handler_of_sigusr1_that_was_there_before_is_called_and_stacks_are_written():
    status, log = run_service(
        """
        def start(self):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)  # signals are answered in their order
        def stop(self, grace_s):
            print(f"heard {len(heard)}", file=sys.stderr)
        """,
        before="""
        import signal
        import sys
        heard = []
        signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
        """,
    )
    assert status == 0, log
    assert "heard 1" in log
    assert "most recent call first" in log
