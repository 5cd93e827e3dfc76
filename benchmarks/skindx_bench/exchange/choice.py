"""Advice on which exchange to use, from the measurements of each kind."""

from collections.abc import Sequence
from dataclasses import replace

from skindx_bench.exchange.rows import Row
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.writing import bracketed, markdown_table

ADVICE = {
    "dense": ("`fused` in one message after backward, as `dense`", "a network that keeps up"),
    "dense-bf16": ("the same, `wire: bf16`", "a network that nearly keeps up"),
    "fused": ("`fused` behind backward", "several nodes, a network that nearly keeps up"),
    "hierarchical": ("`hierarchical`", "several ranks share a node's link"),
    "multicolor": ("`multicolor`", "many ranks, high latency"),
    "powersgd": ("`powersgd`, rank 4", "a slow network, fast processors"),
    "topk": ("`topk`", "a slow network, few ranks"),
    "gtopk": ("`gtopk`", "a slow network, many ranks"),
}
"""Key -> `exchange.kind`, and when to take it."""

_HEADINGS = ("`exchange.kind`", "measured with", "ms", "of these local", "MB a rank", "when")


def choice(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the rows that an `exchange.kind` is advised by, "" without any.

    For a row behind a backward pass the time is what the exchange adds to the pass.
    """
    cells = [_cells(row) for key in ADVICE for row in rows if row.advice == key]
    return markdown_table(_HEADINGS, cells) if cells else ""


def _cells(row: Row) -> tuple[str, ...]:
    kind, when = ADVICE[row.advice]
    beyond = replace(row, seconds=[seconds - row.hidden_s for seconds in row.seconds])
    sent = "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.3g}"
    return kind, row.setting, _ms(beyond.total), _ms(row.local), sent, when


def _ms(figure: Figure | None) -> str:
    return bracketed(figure, ",.0f") if figure else ""
