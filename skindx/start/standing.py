"""Where a run stands (dataset, training, bundle, evaluation, page), and what to do next.

It looks at names, sizes and small JSON files only, so that the answer comes at once. What cannot be
read counts as not there: the verb that is named next says what is wrong with it.
"""

import hashlib
import http.client
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.text import printable
from skindx.core.untrusted import MEGABYTE, read_json, read_plain_yaml
from skindx.data.layout import LEDGER, MANIFEST, SUMMARY

RECIPE, CONFIG = "recipe.yaml", "config.yaml"
"""What `skindx new` writes into a run."""
DATA, BUNDLE, EVALUATION = "data", "bundle", "evaluation"
_EVALUATED = "evaluation.json"
_INDEX, _METRICS, _SETTINGS, _CARD = "bundle.json", "metrics.json", "train.yaml", "member.json"
PORT = 7860
"""Where `skindx serve` listens if it is not told otherwise."""
_ABOVE, _MOST_ENTRIES = 3, 500
_HEALTH_S, _HEALTH_BYTES = 0.3, 1 << 16

_MARKS = (
    f"{DATA}/{MANIFEST}",
    f"{DATA}/{LEDGER}",
    f"{BUNDLE}/{_INDEX}",
    "ensemble.json",
    MANIFEST,
)
"""Each makes its folder a run; so do a recipe and a config, and settings and members, together."""

JOBS = (
    ("build a dataset of your images", "skindx new my/images"),
    ("train networks on a dataset", "skindx train DATA --out runs/mine"),
    ("diagnose photos with a bundle", "skindx serve BUNDLE"),
)
"""What people do, and the first command of each."""


def where_it_stands(here: Path, port: int = PORT) -> list[str]:
    """Return what `skindx` prints without a verb: the run in or near `here`, or three jobs."""
    runs = list(_runs_near(here))
    if not runs:
        width = max(len(job) for job, _ in JOBS)
        lines = [f"  {job:{width}}   {command}" for job, command in JOBS]
        return [
            "No run is here or in runs/. Three jobs, and how each begins:",
            *lines,
            "To see all of it on synthetic images: skindx demo. All verbs: skindx --help",
        ]
    lines, others = standing_of(runs[0], here, port), runs[1:]
    if others:
        names = ", ".join(_shown(run, here) for run in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        lines.append(f"Also here: {names}{more}; run skindx inside one of them.")
    return [printable(line) for line in lines]


def standing_of(run: Path, here: Path, port: int = PORT) -> list[str]:
    """Return a line for each part of a run, and the next command."""
    data = run if (run / MANIFEST).is_file() else run / DATA
    bundle, at = run / BUNDLE, _shown(run, here)
    bundled, served = (bundle / _INDEX).is_file(), False
    dataset, built = _dataset(data)
    if bundled and not built:
        dataset = "not in this run"
    training = _training(run)
    metrics = _json(run / EVALUATION / _METRICS)
    rows = [("dataset", dataset), ("training", training)]
    evaluated = bundled and bool(metrics) and (bundle / _METRICS).is_file()
    if bundled:
        digest = hashlib.sha256((bundle / _INDEX).read_bytes()).hexdigest()
        served = _serves(digest, port)
        page = f"answers at http://127.0.0.1:{port}" if served else f"not served on port {port}"
        judged = _judged(metrics) if evaluated else "none of this bundle yet"
        if (beside := bundle / _EVALUATED).is_file():
            judged += f", digest {hashlib.sha256(beside.read_bytes()).hexdigest()[:16]}"
        rows += [("bundle", f"digest {digest[:16]}"), ("evaluation", judged), ("page", page)]
    width = max(len(name) for name, _ in rows)
    lines = [
        f"{'this folder' if at == '.' else at}:",
        *(f"  {name:{width}}  {text}" for name, text in rows),
    ]
    if served:
        step = f"open http://127.0.0.1:{port}, or skindx diagnose {_quoted(bundle, here)} PHOTO"
    else:
        step = _next(run, data, here, built, bundled, evaluated)
    return [*lines, f"Next: {step}"]


def _next(  # noqa: PLR0917
    run: Path, data: Path, here: Path, built: bool, bundled: bool, evaluated: bool
) -> str:
    at, of, bundle = _quoted(run, here), _quoted(data, here), _quoted(run / BUNDLE, here)
    if evaluated:
        return f"skindx serve {bundle}"
    if bundled:
        return f"skindx evaluate {bundle} {of if built else 'DATA'}"
    if not built and not (run / _SETTINGS).is_file():
        recipe = _quoted(run / RECIPE, here) if (run / RECIPE).is_file() else "SOURCE"
        return f"skindx build {recipe} --out {of}"
    into = at if run != data else "RUN"
    names = [_SETTINGS, CONFIG] if run != data else []
    config = next((run / name for name in names if (run / name).is_file()), None)
    chosen = f" --config {_quoted(config, here)}" if config else ""
    return f"skindx train {of if built else 'DATA'}{chosen} --out {into}"


def _runs_near(here: Path) -> Iterator[Path]:
    """Yield the run that `here` is in, or else those below `here` and `here/runs`, newest first."""
    for folder in (here, *list(here.parents)[:_ABOVE]):
        if is_run(folder):
            inside = folder.name == DATA and (folder / MANIFEST).is_file() and folder.parent
            yield inside if inside and is_run(inside) else folder
            return
    below = [run for top in (here, here / "runs") for run in _folders(top) if is_run(run)]
    yield from sorted(below, key=_changed, reverse=True)


def is_run(folder: Path) -> bool:
    """Tell whether a folder is a run, the beginning of one, or a dataset."""
    with suppress(OSError):
        if any((folder / mark).is_file() for mark in _MARKS):
            return True
        if (folder / _SETTINGS).is_file() and (folder / "members").is_dir():
            return True
        return (folder / RECIPE).is_file() and (folder / CONFIG).is_file()
    return False


def _folders(top: Path) -> list[Path]:
    result = []
    with suppress(OSError), os.scandir(top) as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST_ENTRIES:
                break
            if entry.is_dir() and not entry.name.startswith("."):
                result.append(Path(entry.path))
    return result


def _changed(run: Path) -> float:
    with suppress(OSError):
        return run.stat().st_mtime
    return 0.0


def _dataset(data: Path) -> tuple[str, bool]:
    if not (data / MANIFEST).is_file():
        begun = (data / LEDGER).is_file()
        return ("its build was not finished" if begun else "not built yet"), False
    summary = _json(data / SUMMARY)
    kept, classes = summary.get("kept"), summary.get("splits")
    if isinstance(kept, int) and isinstance(classes, dict):
        return f"{kept:,} images of {len(classes)} classes", True
    return "built", True


def _training(run: Path) -> str:
    members = [folder for folder in _folders(run / "members") if not folder.name.startswith("_")]
    finished = [folder for folder in members if (folder / _CARD).is_file()]
    try:
        settings = read_plain_yaml(run / _SETTINGS)
        count = len(settings.get("members") or ()) + len(settings.get("reused") or ())
    except (UserError, OSError, TypeError):  # none, or no settings: `skindx train` says so
        count = len(members)
    if not count and not members:
        return "not begun" if not (run / BUNDLE / _INDEX).is_file() else "done elsewhere"
    if (run / BUNDLE / _INDEX).is_file():
        return f"done, {_members(count)}"
    under_way = [folder.name for folder in members if folder not in finished]
    at = f", {under_way[0]} is not finished" if under_way else ""
    return f"{len(finished)} of {_members(count)} trained{at}"


def _members(count: int) -> str:
    return f"{count} member{'' if count == 1 else 's'}"


def _judged(metrics: dict[str, Any]) -> str:
    try:
        balanced = metrics["ensemble"]["balanced_accuracy"]
        low, high = (f"{100 * balanced[key]:.1f}" for key in ("low", "high"))
        figure = f"{100 * balanced['value']:.1f} % [{low}, {high}]"
        return f"balanced accuracy {figure} on {metrics['pictures']:,} images"
    except (KeyError, TypeError, ValueError):
        return "done"


def _serves(digest: str, port: int) -> bool:
    """Tell whether a server on this machine answers with this bundle; never leaves the machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HEALTH_S)
    try:
        connection.request("GET", "/v1/health")
        body = connection.getresponse().read(_HEALTH_BYTES)
        return bool(json.loads(body).get("digest") == digest)
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return False
    finally:
        connection.close()


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, 64 * MEGABYTE)
    except (UserError, OSError):  # missing or damaged: the verb that reads it says so
        return {}


def _shown(path: Path, here: Path) -> str:
    return os.path.relpath(path, here)


def _quoted(path: Path, here: Path) -> str:
    return shlex.quote(_shown(path, here))
