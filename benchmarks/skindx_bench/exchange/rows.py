"""Rows of measurements, one an exchange, and the tables of all rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from skindx.core.measurement import interleave
from skindx_bench.exchange.cluster import Cluster
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.clock import median as figure_of
from skindx_bench.harness.writing import bracketed, markdown_table, terminal_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One candidate of one part of the bench; seconds and bytes are those of one exchange."""

    part: str
    """Rows of one part took turns."""
    name: str
    """As the tables show it; nothing is looked up by it."""
    seconds: Sequence[float]
    """Of the slowest rank, round by round."""
    local_s: Sequence[float] = ()
    """The same work without wires, where it was measured."""
    sent_bytes: float | None = None
    """Mean of the ranks, by the exchange's own count."""
    wire_bytes: float | None = None
    """Mean of the nodes, by their interfaces' count."""
    floor_s: float | None = None
    """The bytes that the busiest link has to carry, divided by its rate."""
    hidden_s: float = 0.0
    """The part of the time that a backward pass takes, behind which an exchange can hide."""
    advice: str = ""
    """The key of `choice.ADVICE` that this row is the measurement of; "" for none."""
    setting: str = ""
    """Network and ranks, as the table of advice shows them."""

    @property
    def total(self) -> Figure:
        """Time of the exchange, ms."""
        return _ms(self.seconds)

    @property
    def local(self) -> Figure | None:
        """Time without wires, ms."""
        return _ms(self.local_s) if self.local_s else None

    @property
    def network(self) -> Figure | None:
        """Rest of the exchange's time, ms; below zero is noise."""
        if not self.local_s:
            return None
        return _ms([all_s - own_s for all_s, own_s in zip(self.seconds, self.local_s, strict=True)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        figures = {"total_ms": self.total, "local_ms": self.local, "network_ms": self.network}
        return {
            "part": self.part,
            "name": self.name,
            **{
                key: {"value": figure.value, "spread": list(figure.spread), "n": figure.n}
                for key, figure in figures.items()
                if figure
            },
            "sent_bytes": self.sent_bytes,
            "wire_bytes": self.wire_bytes,
            "floor_ms": self.floor_s and 1000 * self.floor_s,
        }


def _ms(seconds: Sequence[float]) -> Figure:
    return figure_of([1000 * elapsed for elapsed in seconds], "ms")


@dataclass
class Turns:
    """Lets candidates take turns; each rank reads its clock, and the slowest rank's time counts."""

    cluster: Cluster
    now_s: float = 0.0
    answers: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)

    def take(
        self, candidates: Mapping[str, tuple[str, Mapping[str, Any]]], rounds: int
    ) -> dict[str, list[float]]:
        """Return the seconds of each candidate: a command of the ranks and its arguments."""
        calls = {name: self._call(name, *command) for name, command in candidates.items()}
        return interleave(calls, rounds, clock=lambda: self.now_s)

    def _call(self, name: str, do: str, arguments: Mapping[str, Any]) -> Callable[[], None]:
        rounds = self.answers.setdefault(name, [])

        def call() -> None:
            answers = self.cluster.ask(do, **arguments)
            rounds.append(answers)
            self.now_s += max(answer["seconds"] for answer in answers)

        return call

    def mean(self, name: str, key: str) -> float:
        """Return the mean over ranks of what they counted, the median of the rounds."""
        return median(fmean(rank[key] for rank in answers) for answers in self.answers[name])


_COLUMNS = (
    "exchange", "total, ms", "local, ms", "network, ms", "floor, ms",
    "sent, MB", "on link, MB",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    floor_ms = None if row.floor_s is None else 1000 * row.floor_s
    return [
        row.name,
        *(bracketed(figure) if figure else "" for figure in (row.total, row.local, row.network)),
        "" if floor_ms is None else f"{floor_ms:.1f}",
        *("" if size is None else f"{size / 1e6:.3f}" for size in (row.sent_bytes, row.wire_bytes)),
    ]


def parts_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each part, in order."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.part, []).append(row)
    return parts


def tables(rows: Sequence[Row]) -> "list[Table]":
    """Return one table a part, for a terminal."""
    return [
        terminal_table(part, _COLUMNS, [_cells(row) for row in own], no_wrap=True)
        for part, own in parts_of(rows).items()
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return the tables as Markdown."""
    return "\n".join(
        f"{part}\n\n{markdown_table(_COLUMNS, [_cells(row) for row in own])}"
        for part, own in parts_of(rows).items()
    )
