"""What the command line shows of a cluster."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from megalith.cli.columns import Column, fitted, room
from megalith.cli.words import duration, held_by, journal_line, size
from megalith.control import ClusterStatus, MemberStatus, PsCandidate, RestoreReport

_LOSSES = 10  # sentences about what was lost, the newest; --json has more of them
_LATE_S = 3.0  # a heart-beat older than this is shown in yellow
_UNKNOWN = "-"  # in place of a figure that nobody reports

# In the order in which the rows below have their figures
_PROCESS = (
    Column("process", is_figure=False),
    Column("address", goes=1, is_figure=False),
    Column("state", is_figure=False),
)
_PS = (
    *_PROCESS,
    Column("rows"),
    Column("table"),
    Column("memory"),
    Column("buckets", goes=2),
    Column("req/s"),
    Column("p99", goes=3),
    Column("heard", goes=4),
)
_CANDIDATES = (*_PROCESS, Column("shard"), Column("measured rows/s"))
_WORKERS = (
    *_PROCESS,
    Column("step", goes=2),
    Column("batches"),
    Column("examples/s"),
    Column("loss"),
    Column("heard", goes=3),
)


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


def status_view(status: ClusterStatus, width: int) -> RenderableType:
    """The same in so many cells, to be printed or redrawn."""
    lines = [*_job_lines(status), *_saving(status), *_trouble_lines(status)]
    parts: list[RenderableType] = []
    for line in lines:
        text = Text.from_markup(line, overflow="fold")
        parts.append(text)

    ps = [_ps_row(member, status) for member in status.members if member.role == "ps"]
    parts.append(fitted(_PS, ps, width))

    candidates = [_candidate_row(candidate) for candidate in status.candidates]
    if candidates:
        parts.append(fitted(_CANDIDATES, candidates, width))

    workers = [_worker_row(member) for member in status.members if member.role == "worker"]
    if workers:
        parts.append(fitted(_WORKERS, workers, width))

    return Group(*parts)


def _job_lines(status: ClusterStatus) -> list[str]:
    phase = f"[bold]{status.phase}[/bold]{_held(status)}"
    checkpoint = escape(status.last_checkpoint) or "none yet"
    return [
        f"{phase}, step {status.global_step}, epoch {status.epoch}",
        f"controller {status.address}, up {duration(status.up_s)}",
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

    written = f"{size(saving.bytes)} written of about {saving.rows:,} rows"
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
            name = _process_of(member, status)
            lines.append(f"[red]{name}: {escape(member.complaint)}[/red]")

    return lines


def _held(status: ClusterStatus) -> str:
    return "".join(f", {escape(phrase)}" for phrase in held_by(status.barrier))


def _last_save(status: ClusterStatus) -> str:
    save = status.last_save
    if save is None:
        return "none by this controller"

    since_s = max(0.0, time.time() - save.ended_at_s)
    ago = f"{duration(since_s)} ago"
    if save.error:
        return f"[red]failed[/red] {ago}: {escape(save.error)}"

    written = f"{save.rows:,} rows, {size(save.bytes)}"
    line = f"step {save.step}, {ago}, {written}, took {save.seconds:.1f} s"
    if save.removed:
        line += f"; removed {escape(', '.join(save.removed))}"

    return line


def _next_save(status: ClusterStatus) -> str:
    if status.next_save_s is not None:
        return f"in {duration(status.next_save_s)}"
    if status.next_save_step is not None:
        return f"at step {status.next_save_step}"

    return "when asked for, and at the end"


def _ps_row(member: MemberStatus, status: ClusterStatus) -> list[str]:
    memory = size(member.resident_bytes)
    if member.memory_limit_bytes:
        memory += f"/{size(member.memory_limit_bytes)}"

    requests = f"{member.requests_per_s:,.0f}"
    slowest = f"{member.p99_s * 1e3:.1f} ms"
    is_heard = member.standing == "alive"
    return [
        _process_of(member, status),
        member.address,
        _state(member),
        f"{member.rows:,}",
        size(member.bytes),
        memory,
        str(member.buckets),
        requests if is_heard else _UNKNOWN,
        slowest if is_heard else _UNKNOWN,
        _heard(member),
    ]


def _process_of(member: MemberStatus, status: ClusterStatus) -> str:
    """The process that holds a shard; where some stand by, that may be one of another index."""
    for candidate in status.candidates:
        if candidate.shard == member.index:
            return candidate.name

    return member.name


def _candidate_row(candidate: PsCandidate) -> list[str]:
    state = "[green]chosen[/green]"
    shard = str(candidate.shard)
    if candidate.shard is None:
        state = "[yellow]stands by[/yellow]"
        shard = _UNKNOWN

    if not candidate.is_connected:
        state = "[red]lost[/red]"

    rate = f"{candidate.rows_per_s:,.0f}" if candidate.rows_per_s else _UNKNOWN
    return [candidate.name, candidate.address, state, shard, rate]


def _worker_row(member: MemberStatus) -> list[str]:
    batches = f"{member.position:,}"
    if member.total_batches:
        batches += f"/{member.total_batches:,}"

    is_training = member.standing == "alive" and not member.is_finished
    rate = f"{member.examples_per_s:,.0f}"
    return [
        member.name,
        member.address,
        _state(member),
        f"{member.global_step:,}",
        batches,
        rate if is_training else _UNKNOWN,
        f"{member.loss:.4f}" if member.position else _UNKNOWN,
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
        return _UNKNOWN

    text = f"{duration(member.silent_s)} ago"
    return f"[yellow]{text}[/yellow]" if member.silent_s > _LATE_S else text
