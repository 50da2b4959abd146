"""What the command line shows of a cluster."""

import time
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from megalith.control import (
    BarrierStatus,
    ClusterStatus,
    MemberStatus,
    PsCandidate,
    RestoreReport,
)

_MAX_WIDTH = 400
_LOSSES = 10  # sentences about what was lost, the newest; --json has more of them
# Titles of columns, in the order in which the rows below have their figures
_PS_FIGURES = ("rows", "table", "memory", "buckets", "req/s", "p99", "heard")
_CANDIDATE_FIGURES = ("shard", "measured rows/s")
_WORKER_FIGURES = ("step", "batches", "examples/s", "loss", "heard")
_LATE_S = 3.0  # a heart-beat older than this is shown in yellow


def print_line(console: Console, line: str, style: str = "") -> None:
    """One line as it is: nothing in it is markup, and it is not wrapped."""
    console.print(line, style=style or None, highlight=False, soft_wrap=True, markup=False)


def print_status(status: ClusterStatus, console: Console | None = None) -> None:
    """The whole cluster: the controller's lines and a row per process."""
    console = console or Console()
    view = status_view(status)
    # Figures cut to fit would be wrong ones: a narrow terminal, or a file, gets long lines.
    wide = console.options.update(width=_MAX_WIDTH)
    needed = console.measure(view, options=wide).maximum
    console.width = max(console.width, needed)
    console.print(view, highlight=False)


def journal_line(error: str) -> str:
    """What follows from a journal that cannot be written."""
    return (
        f"cannot be written ({error}); "
        "if the controller dies now, the next one forgets a stop of training"
    )


def restored_line(path: str, parts: Sequence[RestoreReport]) -> str:
    """What parameter servers took out of one checkpoint when they started."""
    servers = f"{len(parts)} ps"
    if not path:
        return f"nothing was restored on {servers}: there is no checkpoint"

    rows = sum(part.rows for part in parts)
    seconds = max(part.seconds for part in parts)
    increments = parts[0].increments
    source = f"{path} with {increments} increments" if increments else path
    line = f"restored {source}: step {parts[0].step}, {rows:,} rows on {servers} in {seconds:.1f} s"

    expired = sum(part.expired for part in parts)
    left_out = sum(part.left_out for part in parts)
    if expired:
        line += f"; {expired:,} rows had expired"
    if left_out:
        line += f"; {left_out:,} rows of other tables were left out"

    filters_reset = sum(part.filters_reset for part in parts)
    if filters_reset:
        line += (
            f"; {filters_reset} admission filters were saved while their settings changed: "
            "ids without a row are counted anew there"
        )

    return line


def status_view(status: ClusterStatus) -> RenderableType:
    """The same, to be printed or redrawn."""
    lines = [*_job_lines(status), *_saving(status), *_trouble_lines(status)]
    parts: list[RenderableType] = []
    for line in lines:
        text = Text.from_markup(line, overflow="fold")
        parts.append(text)

    ps = [_ps_row(member) for member in status.members if member.role == "ps"]
    parts.append(_members(_PS_FIGURES, ps))

    candidates = [_candidate_row(candidate) for candidate in status.candidates]
    if candidates:
        parts.append(_members(_CANDIDATE_FIGURES, candidates))

    workers = [_worker_row(member) for member in status.members if member.role == "worker"]
    if workers:
        parts.append(_members(_WORKER_FIGURES, workers))

    return Group(*parts)


def _job_lines(status: ClusterStatus) -> list[str]:
    phase = f"[bold]{status.phase}[/bold]{_held(status)}"
    checkpoint = escape(status.last_checkpoint) or "none yet"
    return [
        f"{phase}, step {status.global_step}, epoch {status.epoch}",
        f"controller {status.address}, up {_duration(status.up_s)}",
        f"model dir  {escape(status.model_dir)}",
        f"checkpoint {checkpoint}",
        f"last save  {_last_save(status)}",
        f"next save  {_next_save(status)}",
        *_restored(status),
        *([f"input      {escape(status.input)}"] if status.input else []),
    ]


def _restored(status: ClusterStatus) -> list[str]:
    """A line for each checkpoint that parameter servers have started from."""
    parts: dict[str, list[RestoreReport]] = {}
    for member in status.members:
        if member.restored is not None and member.restored.path:
            parts.setdefault(member.restored.path, []).append(member.restored)

    lines = []
    for path, restored in parts.items():
        said = restored_line(path, restored).removeprefix("restored ")
        lines.append(f"restored   {escape(said)}")

    return lines


def _saving(status: ClusterStatus) -> list[str]:
    """A line about the save that is under way, if one is."""
    saving = status.saving
    if saving is None:
        return []

    written = f"{_size(saving.bytes)} written of about {saving.rows:,} rows"
    return [f"saving     step {saving.step}, {written}, for {saving.seconds:.1f} s"]


def _trouble_lines(status: ClusterStatus) -> list[str]:
    """What is not saved, lost or wrong, and how the job ends; nothing while all is well."""
    lines = []
    if status.unsaved:
        lines.append(f"not saved  {escape(status.unsaved)}")
    if status.ending:
        lines.append(f"ending     {escape(status.ending)}; saving what was trained")

    if status.journal_error:
        journal = journal_line(status.journal_error)
        lines.append(f"[red]journal    {escape(journal)}[/red]")

    if status.rows_lost:
        lines.append(f"[red]lost       {status.rows_lost:,} rows[/red]")

    for loss in status.losses[-_LOSSES:]:
        lines.append(f"[red]lost       {escape(loss.what)}[/red]")

    if status.outcome:
        lines.append(f"outcome    {status.outcome}: {escape(status.reason)}")

    for member in status.members:
        if member.complaint:
            lines.append(f"[red]ps {member.index}: {escape(member.complaint)}[/red]")

    return lines


_HELD_BY = {
    "operator": "stopped by an operator: {}",
    "save": "held by a save: {}",
    "health": "held because of {}",
    "platform": "suspended by the platform: {}",
    "action": "held by a stop that was written to a file: {}",
}


def held_by(barrier: BarrierStatus) -> list[str]:
    """Who holds training and why, a phrase for each holder."""
    phrases = []
    for holder in barrier.holders:
        wording = _HELD_BY.get(holder.kind, f"held by {holder.kind}: {{}}")
        phrase = wording.format(holder.reason)
        if holder.reason == holder.kind:  # no reason was given
            phrase, _, _ = phrase.partition(":")
        if holder.action:
            phrase += f" (action {holder.action})"

        phrases.append(phrase)

    return phrases


def _held(status: ClusterStatus) -> str:
    return "".join(f", {escape(phrase)}" for phrase in held_by(status.barrier))


def _last_save(status: ClusterStatus) -> str:
    save = status.last_save
    if save is None:
        return "none by this controller"

    since_s = max(0.0, time.time() - save.ended_at_s)
    ago = f"{_duration(since_s)} ago"
    if save.error:
        return f"[red]failed[/red] {ago}: {escape(save.error)}"

    size = f"{save.rows:,} rows, {_size(save.bytes)}"
    line = f"step {save.step}, {ago}, {size}, took {save.seconds:.1f} s"
    if save.removed:
        line += f"; removed {escape(', '.join(save.removed))}"

    return line


def _next_save(status: ClusterStatus) -> str:
    if status.next_save_s is not None:
        return f"in {_duration(status.next_save_s)}"
    if status.next_save_step is not None:
        return f"at step {status.next_save_step}"

    return "when asked for, and at the end"


def _members(figures: Iterable[str], rows: list[list[str]]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("process", "address", "state"):
        table.add_column(title, no_wrap=True)
    for title in figures:
        table.add_column(title, no_wrap=True, justify="right")

    for row in rows:
        table.add_row(*row)

    return table


def _ps_row(member: MemberStatus) -> list[str]:
    memory = _size(member.resident_bytes)
    if member.memory_limit_bytes:
        memory += f"/{_size(member.memory_limit_bytes)}"

    return [
        f"ps {member.index}",
        member.address,
        _state(member),
        f"{member.rows:,}",
        _size(member.bytes),
        memory,
        str(member.buckets),
        f"{member.requests_per_s:,.0f}",
        f"{member.p99_s * 1e3:.1f} ms",
        _heard(member),
    ]


def _candidate_row(candidate: PsCandidate) -> list[str]:
    state = "[green]chosen[/green]"
    shard = str(candidate.shard)
    if candidate.shard is None:
        state = "[yellow]stands by[/yellow]"
        shard = "-"

    if not candidate.is_connected:
        state = "[red]lost[/red]"

    rate = f"{candidate.rows_per_s:,.0f}" if candidate.rows_per_s else "-"
    return [f"ps process {candidate.index}", candidate.address, state, shard, rate]


def _worker_row(member: MemberStatus) -> list[str]:
    batches = f"{member.position:,}"
    if member.total_batches:
        batches += f"/{member.total_batches:,}"

    return [
        f"worker {member.index}",
        member.address,
        _state(member),
        f"{member.global_step:,}",
        batches,
        f"{member.examples_per_s:,.0f}",
        f"{member.loss:.4f}",
        _heard(member),
    ]


def _state(member: MemberStatus) -> str:
    if member.is_finished:
        return "finished"
    if member.standing in ("expected", "suspect"):
        return f"[yellow]{member.standing}[/yellow]"
    if member.standing != "alive":
        return "[red]dead[/red]"

    if member.complaint:
        return "[red]ill[/red]"
    if member.role == "ps":
        return "[green]ready[/green]" if member.is_ready else "[yellow]starting[/yellow]"

    return "[yellow]blocked[/yellow]" if member.is_blocked else "[green]training[/green]"


def _heard(member: MemberStatus) -> str:
    if not member.address:
        return "-"

    text = f"{_duration(member.silent_s)} ago"
    return f"[yellow]{text}[/yellow]" if member.silent_s > _LATE_S else text


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"

    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.0f} min"

    return f"{minutes / 60:.0f} h"


def _size(count: int) -> str:
    if count < 10**9:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e9:.2f} GB"
