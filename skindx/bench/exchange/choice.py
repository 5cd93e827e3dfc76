"""Which exchange to take when: one line each of what was measured, as a table for README."""

from collections.abc import Sequence
from dataclasses import replace

from skindx.bench.exchange.rows import Row
from skindx.bench.harness.clock import Figure

_WHEN = {
    "dense fp32": ("`fused` in one message after backward, as `dense`", "a network that keeps up"),
    "dense bf16": ("the same, `wire: bf16`", "a network that nearly keeps up"),
    "fused": ("`fused` behind backward", "several nodes, a network that nearly keeps up"),
    "hierarchical": ("`hierarchical`", "several ranks share a node's link"),
    "multicolor": ("`multicolor`", "many ranks, high latency"),
    "powersgd rank 4": ("`powersgd`, rank 4", "a slow network, fast processors"),
    "topk": ("`topk`", "a slow network, few ranks"),
    "gtopk": ("`gtopk`", "a slow network, many ranks"),
}
"""Row of a full exchange -> `exchange.kind`, and when to take it."""


def choice(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the rows that stand for an `exchange.kind`, or "" without any.

    Of a row behind a backward pass the time is what the exchange adds to it. Communication alone is
    no full exchange and has no line.
    """
    full = [row for row in rows if row.name in _WHEN and not row.alone]
    full.sort(key=lambda row: list(_WHEN).index(row.name))
    lines = [_line(row) for row in full]
    head = "| `exchange.kind` | measured with | ms | of these local | MB a rank | when |\n"
    return head + "|---|---|---|---|---|---|\n" + "".join(lines) if lines else ""


def _line(row: Row) -> str:
    kind, when = _WHEN[row.name]
    beyond = replace(row, seconds=[each - row.hidden_s for each in row.seconds])
    sent = "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.3g}"
    local = _figure(row.local) if row.local else ""
    setting = row.part.partition(": ")[2]
    return f"| {kind} | {setting} | {_figure(beyond.total)} | {local} | {sent} | {when} |\n"


def _figure(figure: Figure) -> str:
    low, high = figure.spread
    return f"{figure.value:,.0f} [{low:,.0f}, {high:,.0f}]"
