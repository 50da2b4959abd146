"""`megalith demo realtime`: events, training and serving on one machine, as live figures."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from megalith import serving
from megalith.cli.ctl.answers import errors_as_one_line
from megalith.cli.train.stop_signals import StopSignals
from megalith.control import ClusterStatus, Controller
from megalith.errors import InvalidSetting, MegalithError
from megalith.runtime.config.commands import Command, Group, LazyCommand, Option
from megalith.tasks.clicks import COLUMNS, ClickBatch, draw_batch

_NAME = "megalith demo realtime"
_LINE_S = 1.0
_STOP_S = 60.0  # for the job to end
_ASK_S = 2.0
_IDLE_S = 60  # the job ends by itself if no event comes for so long
_SEED = 7
_PREDICTED = 100  # events that the replicas are asked about for each line
_WIDTH = 11  # of a column
_TITLES = ("seconds", "events", "trained", "auc", "stale", "fresh p50", "fresh p99", "predicted")


class Events:
    """A thread that writes a file of events every second, as a log collector would.

    A file appears under its name when it is whole.
    """

    def __init__(self, folder: Path, per_s: int) -> None:
        self._folder = folder
        self._per_s = per_s

        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

        self.num_written = 0
        self.last = self._write(0)  # the job looks at it for columns and types

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        number = 1
        while not self._stopping.wait(_LINE_S):
            self.last = self._write(number)
            number += 1

    def _write(self, number: int) -> ClickBatch:
        events = draw_batch(_SEED, number, self._per_s)
        now_s = int(time.time())

        columns = {**events.ids, "click": events.labels}
        columns["time"] = np.full(self._per_s, now_s)
        for position, values in enumerate(events.dense.T):
            columns[f"dense{position}"] = values

        path = self._folder / f"events-{number:06}.parquet"
        unfinished = self._folder / f".{path.name}"

        table = pa.table(columns)
        pa.parquet.write_table(table, unfinished)
        os.replace(unfinished, path)

        self.num_written += self._per_s
        return events


def _realtime(seconds: float, events_per_s: int, model_dir: Path | None) -> int:
    with errors_as_one_line(_NAME), _folder(model_dir) as folder:
        data = folder / "events"
        data.mkdir(parents=True, exist_ok=True)
        if any(data.iterdir()):
            raise InvalidSetting(f"--model-dir={folder}: {data} has files of another run")

        events = Events(data, events_per_s)
        signals = StopSignals()
        signals.install()
        job = _start(folder, data)
        events.start()
        try:
            _show(folder, events, job, seconds)
        except KeyboardInterrupt:
            print("stopping", flush=True)
        finally:
            signals.hold()  # another Ctrl-C must not leave processes behind
            events.stop()
            _stop(job)

    return 0


@contextmanager
def _folder(model_dir: Path | None) -> Iterator[Path]:
    if model_dir is not None:
        yield model_dir.absolute()
        return

    with tempfile.TemporaryDirectory(prefix="megalith-demo-") as made:
        yield Path(made)


def _start(folder: Path, data: Path) -> "subprocess.Popen[bytes]":
    """The job, with its output in a file. Ctrl-C reaches only this process, which stops it."""
    features = ",".join(column.name for column in COLUMNS)
    words = [
        "train",
        "ctr",
        f"--data={data}/events-*.parquet",
        f"--follow={_IDLE_S}",
        "--label=click",
        f"--features={features}",
        "--dense=dense0,dense1,dense2,dense3",
        "--time=time",
        "--model=lr",
        "--batch-size=512",
        "--save-on-exit=false",
        "--ps=2",
        "--workers=1",
        "--replicas=2",
        f"--model-dir={folder / 'model'}",
    ]
    with open(folder / "job.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "megalith", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _stop(job: "subprocess.Popen[bytes]") -> None:
    """Tell it as Ctrl-C would, and wait until its processes are gone."""
    if job.poll() is not None:
        return

    job.send_signal(signal.SIGINT)
    try:
        job.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def _show(folder: Path, events: Events, job: "subprocess.Popen[bytes]", seconds: float) -> None:
    """A line every second, from the first trained step on; for ever if `seconds` is 0."""
    model_dir = str(folder / "model")
    print(f"2 ps, 1 worker and 2 replicas; the log is {folder / 'job.log'}", flush=True)
    began_s = 0.0
    with (
        closing(Controller(None, model_dir, _ASK_S)) as control,
        serving.connect(model_dir=model_dir, timeout_s=_ASK_S) as client,
    ):
        while True:
            time.sleep(_LINE_S)
            _check_alive(job, folder)
            try:
                status = control.status()
                line = _line(status, events, client) if status.global_step else ""
            except MegalithError:
                line = ""  # it starts, or a replica is not ready yet

            if not line:
                continue

            if not began_s:
                began_s = time.monotonic()
                titles = [f"{title:>{_WIDTH}}" for title in _TITLES]
                print("".join(titles), flush=True)

            passed_s = time.monotonic() - began_s
            print(f"{passed_s:>{_WIDTH}.0f}{line}", flush=True)
            if seconds and passed_s >= seconds:
                return


def _check_alive(job: "subprocess.Popen[bytes]", folder: Path) -> None:
    status = job.poll()
    if status is not None:
        log = folder / "job.log"
        text = log.read_text(errors="replace")
        lines = text.splitlines()

        last_lines = "\n".join(lines[-10:])
        raise InvalidSetting(f"the job ended with exit status {status}:\n{last_lines}")


def _line(status: ClusterStatus, events: Events, client: serving.ServingClient) -> str:
    """The figures of a moment, empty while a part is not there yet."""
    workers = [member for member in status.members if member.role == "worker"]
    reports = [replica.report for replica in status.replicas]
    if not workers or not reports:
        return ""

    predict_s = _predict_s(events.last, client)

    worker = workers[0]
    auc = worker.metrics.get("auc", math.nan)
    stale_s = max(report.staleness_s for report in reports)
    median_s = max(report.freshness_p50_s for report in reports)
    slowest_s = max(report.freshness_p99_s for report in reports)

    cells = [
        f"{events.num_written:,}",
        f"{worker.examples:,}",
        f"{auc:.4f}",
        f"{stale_s:.2f} s",
        f"{median_s:.2f} s" if median_s else "-",  # nothing has arrived since it started
        f"{slowest_s:.2f} s" if slowest_s else "-",
        f"{predict_s * 1e3:.1f} ms",
    ]

    padded = [f"{cell:>{_WIDTH}}" for cell in cells]
    return "".join(padded)


def _predict_s(batch: ClickBatch, client: serving.ServingClient) -> float:
    """How long a replica takes for some of the newest events."""
    features = {}
    for name, ids in batch.ids.items():
        features[name] = ids[:_PREDICTED]

    began_s = time.perf_counter()
    client.predict(features, batch.dense[:_PREDICTED])
    return time.perf_counter() - began_s


realtime = Command(
    "realtime",
    params=[
        Option(
            ["--seconds"],
            type=click.FloatRange(0.0),
            default=0.0,
            help="End after so many seconds of training; 0 = at Ctrl-C.",
        ),
        Option(
            ["--events-per-s"],
            type=click.IntRange(100),
            default=10_000,
            help="Events that are written to a new file every second.",
        ),
        Option(
            ["--model-dir"],
            type=click.Path(path_type=Path),
            help="Keep events, model and logs in this folder.  [default: a folder that is removed]",
        ),
    ],
    help="Show training and serving at once on this machine: events come as files, a worker "
    "predicts each and then trains on it, and two replicas serve what was trained a moment ago. "
    "Prints a line a second.",
    callback=_realtime,
    examples=("megalith demo realtime", "megalith demo realtime --seconds 30"),
)
demo = Group(
    "demo",
    sections={
        "Commands": (
            LazyCommand(
                "realtime",
                "megalith.cli.demo:realtime",
                "Events, training, two replicas: freshness and AUC as live figures.",
            ),
        )
    },
    help="See the product at work on this machine.",
)
