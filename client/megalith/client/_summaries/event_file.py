"""Summaries as TensorBoard reads them: a file of events."""

import io
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from megalith.client._summaries.summary import PLUGIN, Summary
from megalith.errors import InvalidSetting
from megalith.errors.extras import how_to_install

_VERSION = "brain.Event:2"  # of the format; TensorBoard looks for it at the start
_numbers = itertools.count()  # tells the files of one process apart


class EventFile:
    """A new file of events in a directory, which is made if it is not there. Not for threads.

        with EventFile("logs/my-run") as events:
            events.add(step, scalars={"loss": 0.6})

    `tensorboard --logdir logs` shows it. InvalidSetting if the directory cannot be written, or if
    TensorBoard is not installed. What was added is in the file after each `add`.
    """

    def __init__(
        self, directory: str | os.PathLike[str], wall_clock: Callable[[], float] = time.time
    ) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
            from tensorboard.util.tensor_util import make_tensor_proto
        except ModuleNotFoundError as error:
            raise InvalidSetting(how_to_install("tensorboard", error)) from error

        self._event = event_pb2.Event
        self._summary = summary_pb2
        self._tensor = make_tensor_proto
        self._record_writer = RecordWriter
        self._wall_clock = wall_clock
        try:
            self.path = _new_path(Path(directory), wall_clock())
            self._file = self.path.open("xb", buffering=0)
        except OSError as error:
            raise InvalidSetting(
                f"summaries cannot be written to {directory}: {error.strerror or error}"
            ) from error

        self._write(self._event(wall_time=wall_clock(), file_version=_VERSION))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add(
        self,
        step: int,
        *,
        scalars: Mapping[str, float] | None = None,
        summaries: Iterable[Summary] = (),
    ) -> None:
        """Numbers by tag, and arrays, of one step.

        OSError if they cannot be written: then the file is as it was before.
        """
        message = self._summary.Summary
        values = []
        for tag, number in (scalars or {}).items():
            value = message.Value(tag=tag, simple_value=number)
            values.append(value)
        for summary in summaries:
            values.append(self._value(summary))

        event = self._event(
            wall_time=self._wall_clock(),
            step=step,
            summary=message(value=values),
        )
        self._write(event)

    def close(self) -> None:
        self._file.close()

    def _value(self, summary: Summary) -> Any:
        plugin = self._summary.SummaryMetadata.PluginData(
            plugin_name=PLUGIN, content=summary.head.encode()
        )
        metadata = self._summary.SummaryMetadata(
            plugin_data=plugin,
            summary_description=summary.description,
            data_class=self._summary.DATA_CLASS_TENSOR,
        )
        tensor = self._tensor(summary.values)
        return self._summary.Summary.Value(tag=summary.tag, tensor=tensor, metadata=metadata)

    def _write(self, event: Any) -> None:
        """The whole record, or nothing of it: a reader would not find what is behind a part."""
        record = io.BytesIO()
        self._record_writer(record).write(event.SerializeToString())
        begin = self._file.tell()
        left = record.getbuffer()
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)
                self._file.seek(begin)
            raise


def _new_path(directory: Path, now_s: float) -> Path:
    """A file of its own for each writer, by a name that TensorBoard looks for."""
    directory.mkdir(parents=True, exist_ok=True)
    second = int(now_s)
    host = socket.gethostname()
    process = os.getpid()
    number = next(_numbers)
    name = f"events.out.tfevents.{second:010d}.{host}.{process}.{number}"

    return directory / name
