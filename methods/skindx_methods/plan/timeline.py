"""A step as a Chrome trace, for ui.perfetto.dev, and real steps laid beside a predicted one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, read_json
from skindx_methods.plan.events import Span, Step, StepTask

_ROWS = ("cores", "device", "link")


def _rows(step: Step) -> Iterator[tuple[StepTask, Span, int]]:
    """Yield what takes time, by its begin, with the first row of its resource that is free."""
    ends: dict[str, list[float]] = {}
    spans = sorted(zip(step.tasks, step.spans, strict=True), key=lambda pair: pair[1].begin_s)
    for task, span in spans:
        if span.end_s <= span.begin_s:
            continue
        row_ends = ends.setdefault(task.resource, [])
        free = (row for row, end_s in enumerate(row_ends) if end_s <= span.begin_s + 1e-12)
        row = next(free, len(row_ends))
        row_ends[row : row + 1] = [span.end_s]
        yield task, span, row


def chrome_events(step: Step, name: str = "one rank, one step") -> list[dict[str, Any]]:
    """Return complete events ("X") in microseconds; overlapping tasks of a resource get rows."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}
    ]
    named: set[int] = set()
    for task, span, row in _rows(step):
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


def write_chrome(path: Path, step: Step, name: str = "one rank, one step") -> None:
    """Write the trace, atomically."""
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": chrome_events(step, name)})


def lay_beside(path: Path, measured: Sequence[Path]) -> None:
    """Add traces of real steps to a predicted one, each as a process of its own.

    What was added before is replaced. Raises UserError for a file that is no such trace.
    """
    events = [event for event in _events(path) if event["pid"] == 1]
    for number, other in enumerate(measured, start=2):
        events += [{**event, "pid": number} for event in _events(other)]
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": events})


def _events(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(
            f"the timeline {path} does not exist; run `skindx plan make --timeline {path}` first."
        )
    raw = read_json(path, 64 * MEGABYTE)
    events = raw.get("traceEvents") if isinstance(raw, dict) else None
    if not isinstance(events, list) or not all(
        isinstance(event, dict) and isinstance(event.get("pid"), int) for event in events
    ):
        raise UserError(
            f"{path} is not a timeline of a step; make one with `skindx plan make --timeline`."
        )
    return events
