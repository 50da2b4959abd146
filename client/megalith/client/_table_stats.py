"""What servers report about their tables and variables, added up."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from megalith.protos import parameter_server_pb2 as pb
from megalith.schema.table_counts import NAMES, TableCounts
from megalith.schema.variable_parts import count_of, variable_of


@dataclass(slots=True)
class TableStats(TableCounts):
    """One table on all servers together. Counts are since each server started."""

    # Servers without it, which were replaced since; create it again
    missing_on: tuple[int, ...] = ()
    # It came out of a checkpoint, and no program of this run has created it
    is_unclaimed: bool = False
    # Servers on which it holds more than its memory budget, and takes no new ids
    over_budget_on: tuple[int, ...] = ()
    # Features whose rows it holds, if it was made for features
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VariableStats:
    """One variable on all servers together. Counts are since each server started."""

    parts: int = 0  # that it is held in, each on a server
    # Gradients and summands, of one part each, that would have overflowed it or its optimizer's
    # state
    left_out: int = 0
    missing: int = 0  # parts that no server holds, since one was replaced; create it again


def by_table(answers: Iterable[pb.GetPsStatusResponse]) -> dict[str, TableStats]:
    """The sums over all servers by the names of the tables, in their order.

    The answers come in the order of the servers.
    """
    stats: dict[str, TableStats] = {}
    holders: dict[str, set[int]] = {}
    num_servers = 0

    for index, answer in enumerate(answers):
        num_servers += 1
        for table in answer.tables:
            config = table.config
            holders.setdefault(config.name, set()).add(index)
            held = stats.setdefault(config.name, TableStats())
            for name in NAMES:
                total = getattr(held, name) + getattr(table, name)
                setattr(held, name, total)

            held.is_unclaimed |= table.is_unclaimed
            held.features = tuple(config.features)
            if 0 < config.memory_budget_bytes < table.bytes:
                held.over_budget_on += (index,)

    servers = set(range(num_servers))
    for name, held in stats.items():
        missing = servers - holders[name]
        held.missing_on = tuple(sorted(missing))

    return {name: stats[name] for name in sorted(stats)}


def by_variable(answers: Iterable[pb.GetPsStatusResponse]) -> dict[str, VariableStats]:
    """The sums over all servers, by the names of the variables, in their order."""
    parts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    of: dict[str, int] = {}

    for answer in answers:
        for held in answer.variables:
            name = variable_of(held)
            parts[name] += 1

            of[name] = count_of(held)
            left_out[name] += answer.variables_nonfinite.get(held, 0)

    return {
        name: VariableStats(parts[name], left_out[name], of[name] - parts[name])
        for name in sorted(parts)
    }
