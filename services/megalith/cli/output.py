"""What the command line shows of a cluster."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from megalith.client import ClusterStatus, Member, PsCandidate


def print_status(status: ClusterStatus, console: Console | None = None) -> None:
    """The whole cluster: a headline and a row per process."""
    console = console or Console()
    held = ", held at the barrier" if status.is_stopped else ""
    console.print(
        f"[bold]{status.phase}[/bold]{held}, step {status.global_step}, epoch {status.epoch}", highlight=False
    )
    console.print(f"controller {status.address}", highlight=False)
    console.print(f"model dir  {status.model_dir}", highlight=False, soft_wrap=True)
    console.print(f"checkpoint {status.last_checkpoint or 'none yet'}", highlight=False, soft_wrap=True)
    if status.outcome:
        console.print(f"outcome    {status.outcome}: {status.reason}", highlight=False, soft_wrap=True)
    _print_members(console, ("rows", "memory"), [_ps_row(m) for m in status.members if m.role == "ps"])
    if status.candidates:
        _print_members(console, ("shard", "measured rows/s"), [_candidate_row(c) for c in status.candidates])
    workers = [_worker_row(m) for m in status.members if m.role == "worker"]
    if workers:
        _print_members(console, ("batches", "examples/s", "loss"), workers)


def _print_members(console: Console, figures: tuple[str, ...], rows: list[list[str]]) -> None:
    table = Table(box=SIMPLE, pad_edge=False)
    for title in ("process", "address", "state"):
        table.add_column(title, no_wrap=True)
    for title in figures:
        table.add_column(title, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _ps_row(member: Member) -> list[str]:
    return [f"ps {member.index}", member.address, _state(member), f"{member.rows:,}", f"{member.bytes / 1e6:.1f} MB"]


def _candidate_row(candidate: PsCandidate) -> list[str]:
    state = "[red]lost[/red]"
    if candidate.is_connected:
        state = "[yellow]stands by[/yellow]" if candidate.shard is None else "[green]chosen[/green]"
    shard = "-" if candidate.shard is None else str(candidate.shard)
    rate = f"{candidate.rows_per_s:,.0f}" if candidate.rows_per_s else "-"
    return [f"ps process {candidate.index}", candidate.address, state, shard, rate]


def _worker_row(member: Member) -> list[str]:
    batches = f"{member.position:,}/{member.total_batches:,}" if member.total_batches else f"{member.position:,}"
    figures = [batches, f"{member.examples_per_s:,.0f}", f"{member.loss:.4f}"]
    return [f"worker {member.index}", member.address, _state(member), *figures]


def _state(member: Member) -> str:
    if member.is_finished:
        return "finished"
    if not member.is_connected:
        return "[red]lost[/red]" if member.address else "[yellow]expected[/yellow]"
    if member.role == "ps":
        return "[green]ready[/green]" if member.is_ready else "[yellow]starting[/yellow]"
    return "[yellow]blocked[/yellow]" if member.is_blocked else "[green]training[/green]"
