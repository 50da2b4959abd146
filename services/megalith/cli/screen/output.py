"""What the command line shows of a cluster."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from megalith.cli.screen.columns import room
from megalith.cli.screen.process_tables import process_of, process_tables
from megalith.cli.screen.words import (
    duration,
    held_by,
    hook_errors,
    hook_failures,
    increments_line,
    journal_line,
    left_out_words,
    size,
)
from megalith.control import ClusterStatus, LastSave, RestoreReport
from megalith.runtime.counting import counted

_LOSSES = 10  # sentences about what was lost, the newest; --json has more of them


def print_line(console: Console, line: str, style: str = "") -> None:
    """One line as it is: nothing in it is markup, and it is not wrapped."""
    console.print(line, style=style or None, highlight=False, soft_wrap=True, markup=False)


def print_status(status: ClusterStatus, console: Console | None = None) -> None:
    """The whole cluster: the controller's lines and a row per process."""
    console = console or Console()
    width = room(console)
    console.width = max(console.width, width)
    console.print(status_view(status, width), highlight=False)


def restored_line(path: str, parts: Sequence[RestoreReport]) -> str:
    """What parameter servers took out of one checkpoint when they started."""
    servers = f"{len(parts)} ps"
    if not path:
        return f"nothing was restored on {servers}: there is no checkpoint"

    first = parts[0]
    source = path
    if first.increments:
        increments = counted(first.increments, "increment")
        source = f"{path} with {increments}"

    rows = counted(sum(part.rows for part in parts), "row")
    seconds = max(part.seconds for part in parts)
    line = f"restored {source}: step {first.step}, {rows} on {servers} in {seconds:.1f} s"

    expired = sum(part.expired for part in parts)
    left_out = sum(part.left_out for part in parts)

    if expired:
        rows = counted(expired, "row")
        line += f"; {rows} had expired"
    if left_out:
        rows = counted(left_out, "row of another table was", "rows of other tables were")
        line += f"; {rows} left out"

    filters_reset = sum(part.filters_reset for part in parts)
    if filters_reset:
        filters = counted(
            filters_reset,
            "admission filter was saved while its settings",
            "admission filters were saved while their settings",
        )
        line += f"; {filters} changed: ids without a row are counted anew there"

    return line


def status_view(status: ClusterStatus, width: int) -> RenderableType:
    """The same in so many cells, to be printed or redrawn."""
    lines = [*_job_lines(status), *_saving(status), *_trouble_lines(status)]
    parts: list[RenderableType] = []

    for line in lines:
        text = Text.from_markup(line, overflow="fold")
        parts.append(text)

    parts += process_tables(status, width)
    return Group(*parts)


def _job_lines(status: ClusterStatus) -> list[str]:
    phase = f"[bold]{status.phase}[/bold]{_held(status)}"
    up = duration(status.up_s)
    checkpoint = escape(status.last_checkpoint) or "none yet"
    last_save = _last_save(status.last_save, status.last_checkpoint)

    lines = [
        f"{phase}, step {status.global_step}, epoch {status.epoch}",
        f"controller {status.address}, up {up}",
        f"model dir  {escape(status.model_dir)}",
        f"checkpoint {checkpoint}",
        f"last save  {last_save}",
        *_dense_only(status),
        f"next save  {_next_save(status)}",
        *_restored(status),
    ]

    for note in status.start_notes:
        lines.append(f"started    {escape(note)}")
    if status.input:
        lines.append(f"input      {escape(status.input)}")

    lines += _pieces(status)
    return lines


def _pieces(status: ClusterStatus) -> list[str]:
    """A line about an input that the controller hands out."""
    counts = status.pieces
    if counts is None:
        return []

    line = f"pieces     {counts.done:,} done, {counts.held:,} held"
    if counts.total:
        line += f", {counts.left:,} left"
    if counts.is_followed:
        line += " of the files that are known"
    if counts.returned:
        line += f"; {counts.returned:,} taken back from lost workers"

    return [line]


def _restored(status: ClusterStatus) -> list[str]:
    """A line for each checkpoint that parameter servers have started from."""
    parts: dict[str, list[RestoreReport]] = {}
    for member in status.members:
        restored = member.restored
        if restored is not None and restored.path:
            of_path = parts.setdefault(restored.path, [])
            of_path.append(restored)

    lines = []
    for path, of_path in parts.items():
        line = restored_line(path, of_path)
        said = line.removeprefix("restored ")
        lines.append(f"restored   {escape(said)}")

    return lines


def _saving(status: ClusterStatus) -> list[str]:
    """A line about the save that is under way, if one is."""
    saving = status.saving
    if saving is None:
        return []

    rows = counted(saving.rows, "row")
    written = f"{size(saving.bytes)} written of about {rows}"
    line = f"saving     step {saving.step}, {written}, for {saving.seconds:.1f} s"
    if status.unsaved:
        line += "; no increment before it ends"

    return [line]


def _trouble_lines(status: ClusterStatus) -> list[str]:
    """What is not saved, lost or wrong, and how the job ends; nothing while all is well."""
    lines = []
    if status.unsaved:
        lines.append(f"not saved  {escape(status.unsaved)}")
    if status.ending:
        lines.append(f"ending     {escape(status.ending)}; saving what was trained")

    if status.increment_error:
        failing = increments_line(status.increment_error, status.increments_fail_since_s)
        lines.append(f"[red]increments {escape(failing)}[/red]")

    if status.journal_error:
        journal = journal_line(status.journal_error)
        lines.append(f"[red]journal    {escape(journal)}[/red]")

    skipped = left_out_words(status)
    if skipped:
        lines.append(f"[yellow]left out   {skipped}; the logs of the workers name them[/yellow]")

    raised = hook_errors(status.members)
    if raised:
        calls = counted(raised, "call")
        lines.append(f"[yellow]hooks      {calls} raised; training goes on[/yellow]")
    for failure in hook_failures(status.members):
        lines.append(f"[yellow]           {escape(failure)}[/yellow]")

    if status.rows_lost:
        rows = counted(status.rows_lost, "row")
        lines.append(f"[red]lost       {rows}[/red]")

    for loss in status.losses[-_LOSSES:]:
        lines.append(f"[red]lost       {escape(loss.what)}[/red]")

    if status.outcome:
        lines.append(f"outcome    {status.outcome}: {escape(status.reason)}")

    for member in status.members:
        if member.complaint:
            name = process_of(member, status)
            lines.append(f"[red]{name}: {escape(member.complaint)}[/red]")

    for replica in status.replicas:
        report = replica.report
        if report.complaint:
            lines.append(f"[red]{report.name}: {escape(report.complaint)}[/red]")

    return lines


def _held(status: ClusterStatus) -> str:
    return "".join(f", {escape(phrase)}" for phrase in held_by(status.barrier))


def _dense_only(status: ClusterStatus) -> list[str]:
    """A line about the last dense-only save, if one was tried."""
    save = status.last_dense_save
    return [] if save is None else [f"dense only {_last_save(save, save.path)}"]


def _last_save(save: LastSave | None, checkpoint: str) -> str:
    """What became of it. `checkpoint` is the one that the line above is of."""
    if save is None:
        return "none by this controller"

    since_s = max(0.0, time.time() - save.ended_at_s)
    ago = f"{duration(since_s)} ago"
    if save.error:
        return f"[red]failed[/red] {ago}: {escape(save.error)}"

    rows = counted(save.rows, "row")
    written = f"{rows}, {size(save.bytes)}"
    line = f"step {save.step}, {ago}, {written}, took {save.seconds:.1f} s"
    if save.path != checkpoint:
        line = f"{escape(save.path)}, {line}"

    if save.removed:
        names = ", ".join(save.removed)
        line += f"; removed {escape(names)}"

    return line


def _next_save(status: ClusterStatus) -> str:
    is_planned = status.next_save_s is not None or status.next_save_step is not None
    if is_planned and status.planned_saves_wait:
        return f"waits: {escape(status.planned_saves_wait)}"
    if status.next_save_s is not None:
        return f"in {duration(status.next_save_s)}"
    if status.next_save_step is not None:
        return f"at step {status.next_save_step}"

    return "when asked for, and at the end"
