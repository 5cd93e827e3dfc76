"""One step as a Chrome trace, which Perfetto (ui.perfetto.dev) opens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.planning.flow import Step

_ROWS = ("cores", "device", "copier", "link")


def chrome_events(step: Step, name: str = "one rank, one step") -> list[dict[str, Any]]:
    """Return complete events ("X") in microseconds; overlapping tasks of a resource get rows."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}
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


def write_chrome(path: Path, step: Step, name: str = "one rank, one step") -> None:
    """Write the trace, atomically."""
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": chrome_events(step, name)})


def lay_beside(path: Path, measured: Sequence[Path]) -> None:
    """Add traces of real steps to a predicted one, each as a process of its own.

    What was added before is replaced. Raises UserError for a file that is no such trace.
    """
    own = [event for event in _events(path) if event["pid"] == 1]
    for number, other in enumerate(measured, start=2):
        own += [{**event, "pid": number} for event in _events(other)]
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": own})


def _events(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; `skindx plan make --timeline {path}` writes the predicted "
            "step that real ones are laid beside."
        )
    raw = read_json(path, 64 * MEGABYTE)
    events = raw.get("traceEvents") if isinstance(raw, dict) else None
    if not isinstance(events, list) or not all(
        isinstance(event, dict) and isinstance(event.get("pid"), int) for event in events
    ):
        raise UserError(
            f"{path} is no timeline of a step; `skindx plan make --timeline` makes one."
        )
    return events
