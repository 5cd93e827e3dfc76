"""One step as a Chrome trace, which Perfetto (ui.perfetto.dev) opens."""

from pathlib import Path
from typing import Any

from skindx.files import write_json
from skindx.planning.flow import Step

_ROWS = ("cores", "device", "copier", "link")


def chrome_events(step: Step) -> list[dict[str, Any]]:
    """Return complete events ("X") in microseconds; overlapping tasks of a resource get rows."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "one rank, one step"}}
    ]
    rows: dict[str, list[float]] = {}
    named: set[int] = set()
    spans = sorted(zip(step.tasks, step.spans, strict=True), key=lambda pair: pair[1].begin_s)
    for task, span in spans:
        if span.end_s <= span.begin_s:
            continue
        ends = rows.setdefault(task.resource, [])
        row = next((n for n, end_s in enumerate(ends) if end_s <= span.begin_s + 1e-12), len(ends))
        ends[row : row + 1] = [span.end_s]
        number = 100 * (_ROWS.index(task.resource) + 1) + row
        if number not in named:
            named.add(number)
            label = task.resource if row == 0 else f"{task.resource} {row + 1}"
            events.append(
                {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": label}}
            )
        events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": number,
                "name": task.name,
                "cat": task.resource,
                "ts": round(1e6 * span.begin_s, 3),
                "dur": round(1e6 * (span.end_s - span.begin_s), 3),
                "args": {"alone_ms": round(1e3 * (task.work_s + task.latency_s), 6)},
            }
        )
    return events


def write_chrome(path: Path, step: Step) -> None:
    """Write the trace, atomically."""
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": chrome_events(step)})
