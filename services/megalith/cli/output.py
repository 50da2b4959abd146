"""What the command line shows of a cluster."""

import time
from collections.abc import Iterable

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from megalith.client import Barrier, ClusterStatus, Member, PsCandidate

_MAX_WIDTH = 400
_LOSSES = 10  # sentences about what was lost, the newest; --json has more of them
_LATE_S = 3.0  # a heart-beat older than this is shown in yellow


def print_status(status: ClusterStatus, console: Console | None = None) -> None:
    """The whole cluster: the controller's lines and a row per process."""
    console, view = console or Console(), status_view(status)
    # Figures cut to fit would be wrong ones: a narrow terminal, or a file, gets long lines.
    console.width = max(
        console.width,
        console.measure(view, options=console.options.update(width=_MAX_WIDTH)).maximum,
    )
    console.print(view, highlight=False)


def journal_line(error: str) -> str:
    """What follows from a journal that cannot be written."""
    return f"cannot be written ({error}); if the controller dies now, the next one forgets a stop of training"


def status_view(status: ClusterStatus) -> RenderableType:
    """The same, to be printed or redrawn."""
    lines = [
        f"[bold]{status.phase}[/bold]{_held(status)}, step {status.global_step}, epoch {status.epoch}",
        f"controller {status.address}, up {_duration(status.up_s)}",
        f"model dir  {escape(status.model_dir)}",
        f"checkpoint {escape(status.last_checkpoint) or 'none yet'}",
        f"last save  {_last_save(status)}",
        f"next save  {_next_save(status)}",
    ]
    if status.unsaved:
        lines.append(f"not saved  {escape(status.unsaved)}")
    if status.ending:
        lines.append(f"ending     {escape(status.ending)}; saving what was trained")
    if status.journal_error:
        lines.append(f"[red]journal    {escape(journal_line(status.journal_error))}[/red]")
    if status.rows_lost:
        lines.append(f"[red]lost       {status.rows_lost:,} rows[/red]")
    lines += [f"[red]lost       {escape(loss.what)}[/red]" for loss in status.losses[-_LOSSES:]]
    if status.outcome:
        lines.append(f"outcome    {status.outcome}: {escape(status.reason)}")
    lines += [
        f"[red]ps {member.index}: {escape(member.complaint)}[/red]"
        for member in status.members
        if member.complaint
    ]
    ps = [_ps_row(member) for member in status.members if member.role == "ps"]
    workers = [_worker_row(member) for member in status.members if member.role == "worker"]
    parts: list[RenderableType] = [Text.from_markup(line, overflow="fold") for line in lines]
    parts.append(_members(("rows", "table", "memory", "buckets", "req/s", "p99", "heard"), ps))
    if status.candidates:
        parts.append(
            _members(("shard", "measured rows/s"), [_candidate_row(c) for c in status.candidates])
        )
    if workers:
        parts.append(_members(("step", "batches", "examples/s", "loss", "heard"), workers))
    return Group(*parts)


_HELD_BY = {
    "operator": "stopped by an operator: {}",
    "save": "held by a save: {}",
    "health": "held because of {}",
    "platform": "suspended by the platform: {}",
}


def held_by(barrier: Barrier) -> list[str]:
    """Who holds training and why, a phrase for each holder."""
    phrases = []
    for holder in barrier.holders:
        phrase = _HELD_BY.get(holder.kind, f"held by {holder.kind}: {{}}").format(holder.reason)
        if holder.reason == holder.kind:  # no reason was given
            phrase = phrase.partition(":")[0]
        phrases.append(f"{phrase} (action {holder.action})" if holder.action else phrase)
    return phrases


def _held(status: ClusterStatus) -> str:
    return "".join(f", {escape(phrase)}" for phrase in held_by(status.barrier))


def _last_save(status: ClusterStatus) -> str:
    save = status.last_save
    if save is None:
        return "none by this controller"
    ago = f"{_duration(max(0.0, time.time() - save.ended_at_s))} ago"
    if save.error:
        return f"[red]failed[/red] {ago}: {escape(save.error)}"
    return f"step {save.step}, {ago}, took {save.seconds:.1f} s"


def _next_save(status: ClusterStatus) -> str:
    if status.next_save_s is not None:
        return f"in {_duration(status.next_save_s)}"
    return (
        f"at step {status.next_save_step}"
        if status.next_save_step is not None
        else "when asked for, and at the end"
    )


def _members(figures: Iterable[str], rows: list[list[str]]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("process", "address", "state"):
        table.add_column(title, no_wrap=True)
    for title in figures:
        table.add_column(title, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _ps_row(member: Member) -> list[str]:
    limit = f"/{_size(member.memory_limit_bytes)}" if member.memory_limit_bytes else ""
    return [
        f"ps {member.index}",
        member.address,
        _state(member),
        f"{member.rows:,}",
        _size(member.bytes),
        f"{_size(member.resident_bytes)}{limit}",
        str(member.buckets),
        f"{member.requests_per_s:,.0f}",
        f"{member.p99_s * 1e3:.1f} ms",
        _heard(member),
    ]


def _candidate_row(candidate: PsCandidate) -> list[str]:
    state = "[red]lost[/red]"
    if candidate.is_connected:
        state = "[yellow]stands by[/yellow]" if candidate.shard is None else "[green]chosen[/green]"
    shard = "-" if candidate.shard is None else str(candidate.shard)
    rate = f"{candidate.rows_per_s:,.0f}" if candidate.rows_per_s else "-"
    return [f"ps process {candidate.index}", candidate.address, state, shard, rate]


def _worker_row(member: Member) -> list[str]:
    batches = (
        f"{member.position:,}/{member.total_batches:,}"
        if member.total_batches
        else f"{member.position:,}"
    )
    figures = [
        f"{member.global_step:,}",
        batches,
        f"{member.examples_per_s:,.0f}",
        f"{member.loss:.4f}",
    ]
    return [f"worker {member.index}", member.address, _state(member), *figures, _heard(member)]


def _state(member: Member) -> str:
    if member.is_finished:
        return "finished"
    if member.standing != "alive":
        return {"expected": "[yellow]expected[/yellow]", "suspect": "[yellow]suspect[/yellow]"}.get(
            member.standing, "[red]dead[/red]"
        )
    if member.complaint:
        return "[red]ill[/red]"
    if member.role == "ps":
        return "[green]ready[/green]" if member.is_ready else "[yellow]starting[/yellow]"
    return "[yellow]blocked[/yellow]" if member.is_blocked else "[green]training[/green]"


def _heard(member: Member) -> str:
    if not member.address:
        return "-"
    text = f"{_duration(member.silent_s)} ago"
    return f"[yellow]{text}[/yellow]" if member.silent_s > _LATE_S else text


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.0f} h"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 10**9 else f"{count / 1e9:.2f} GB"
