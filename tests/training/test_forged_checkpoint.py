"""A checkpoint whose seal is right and whose content is not: one sentence, before any step."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torch
from faults import Accident
from ranks import run_ranks
from test_trainer import data_of

from skindx.core.errors import UserError
from skindx.training.checkpoint import keeper
from skindx.training.checkpoint.keeper import checkpoint_folder
from skindx.training.checkpoint.resume import Resuming
from skindx.training.checkpoint.saved_state import split
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.launching.supervise import StopRequest
from skindx.training.parallel.mesh import leave
from skindx.training.tasks.classifier_job import setup_member

pytestmark = pytest.mark.distributed

SETTINGS = {
    "engine": {"accelerator": "cpu", "ranks": 1},
    "exchange": {"kind": "gtopk", "density": 0.05, "warmup": [0.5]},
    "recipe": {"epochs": 2, "batch": 18, "ema": {"decay": 0.9}},
    "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 32}}],
    "loader": {"threads": 1},
    "checkpoint": {"every_steps": 1},
}

Change = Callable[[Any], Any]
_GONE = object()

TENSORS: dict[str, Change] = {
    "no longer there": lambda value: _GONE,
    "flat": lambda value: value.reshape(-1) if value.ndim > 1 else value.reshape(1, -1),
    "longer": lambda value: torch.cat([value.reshape(-1), value.reshape(-1)[:1]]),
    "of other numbers": lambda value: value.to(torch.bfloat16),
    "a text": lambda value: "text",
    "nothing": lambda value: None,
    "a list": lambda value: [1, 2],
}
VALUES: dict[str, Change] = {
    "no longer there": lambda value: _GONE,
    "a text": lambda value: 7 if isinstance(value, str) else "text",
    "a tensor": lambda value: torch.zeros(3),
    "named": lambda value: {"a": 1},
}
NAMED: dict[str, Change] = {
    **VALUES,
    "with another": lambda value: {**value, "another": torch.zeros(2)},
}


@pytest.fixture(scope="module")
def half_way(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was killed in its second epoch."""
    run = tmp_path_factory.mktemp("forged") / "run"
    settings = TrainSettings.parse(SETTINGS)
    ranks = faults.start(1, run, small_dataset, settings, Accident("kill", 5, rank=0))
    assert faults.wait(ranks) == [-9]
    return run


def test_whatever_does_not_fit_is_one_sentence(half_way: Path, small_dataset: Path) -> None:
    (said,) = run_ranks(1, _open_forged, str(half_way), str(small_dataset), timeout_s=280)
    assert said.pop("as written") == "opened"
    assert len(said) > 25
    assert [forged for forged, sentence in said.items() if sentence == "opened"] == []
    for forged, sentence in said.items():
        assert "does not fit this training" in sentence, (forged, sentence)
        assert "\n" not in sentence, (forged, sentence)


def test_a_training_with_it_ends_with_code_two(
    half_way: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(half_way, tmp_path / "run"))
    folder = checkpoint_folder(run, "a")
    state = _read(folder)
    state["shared"]["average"].popitem()
    _write(folder, state)
    ranks = faults.start(1, run, small_dataset, TrainSettings.parse(SETTINGS))
    assert faults.wait(ranks) == [2]
    (said,) = [line for line in faults.printed(run, 0).splitlines() if line.startswith("error")]
    assert "does not fit this training (average lacks " in said
    assert "Traceback" not in faults.printed(run, 0)


def _open_forged(run: str, dataset: str) -> dict[str, str]:
    """Return what each forged checkpoint came to, by what was changed in it."""
    os.fsync = lambda descriptor: None  # nobody pulls the plug of this process
    settings = TrainSettings.parse(SETTINGS)
    mesh = join(settings.engine)
    (member,) = settings.members
    folder, said = checkpoint_folder(Path(run), "a"), {}
    state = _read(folder)
    mark = keeper.read_index(keeper.path_of(folder, keeper.saved_in(folder)[0]))["fingerprint"]
    saving = Resuming(folder, mark, settings.checkpoint, StopRequest(5))
    training = setup_member(settings, member, data_of(Path(dataset)), mesh, print)
    for name, forged in [("as written", state), *_forged(state)]:
        _write(folder, forged)
        try:
            saving.attach(training, lambda line: None)
            said[name] = "opened"
        except UserError as error:
            said[name] = str(error)
    _write(folder, state)
    leave()
    return said


def _read(folder: Path) -> dict[str, Any]:
    checkpoint = keeper.path_of(folder, keeper.saved_in(folder)[0])
    own = {part: keeper.RankStates(checkpoint, 1, part)[0] for part in PARTS}
    return {"shared": keeper.read_shared(checkpoint), "rank-0": own}


PARTS = ("statistics", "loss", "random", "exchange")


def _write(folder: Path, state: dict[str, Any]) -> None:
    """Write the newest checkpoint again, with hashes and a seal that fit."""
    at = keeper.saved_in(folder)[0]
    head = keeper.read_index(keeper.path_of(folder, at))
    keeper.begin(folder)
    files = keeper.write_part(
        keeper.writing(folder), {name: split(state[name]) for name in ("rank-0", "shared")}
    )
    for key in ("format", "files"):
        del head[key]
    keeper.finish(folder, at, head, files, keep=2)


def _forged(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changed states: of each kind of place some, each with some of the changes."""
    rng = random.Random(0)
    places = [path for path in _places(state, ()) if len(path) > 1]
    seen: dict[tuple[str, ...], int] = {}
    rng.shuffle(places)
    for path in places:
        # Of parameters and of statistics of layers one is like the other.
        alike = {"weights", "optimizer", "average", "statistics"} & set(path)
        kind = path[: path.index(alike.pop()) + 1] if alike else path[:4]
        kind += (path[-1].rpartition(".")[2],) if alike else ()
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] > 1:
            continue
        value = _at(state, path)
        tensor = isinstance(value, torch.Tensor | np.ndarray)
        changes = TENSORS if tensor else NAMED if isinstance(value, dict) else VALUES
        for name, change in rng.sample(sorted(changes.items()), 1):
            if tensor and isinstance(value, np.ndarray):
                value = torch.from_numpy(value)
            changed = change(value)
            if _is_allowed(path, value, changed):
                continue
            yield f"{'/'.join(path)} is {name}", _changed(state, path, changed)


def _changed(node: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return the tree with another value at `path`, and share the rest with the old one."""
    if not path:
        return value
    key, *rest = path
    found = _changed(node[key], tuple(rest), value)
    return {**node, key: found} if found is not _GONE else {k: node[k] for k in node if k != key}


def _places(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in node.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _places(value, (*path, key))


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


def _is_allowed(path: tuple[str, ...], value: Any, changed: Any) -> bool:
    """True for what older trainings may have left out, and for what stays as it was."""
    of_one = path[:3] == ("shared", "engine", "optimizer") and len(path) == 4
    same = isinstance(value, torch.Tensor) and value.ndim == 0 and isinstance(changed, torch.Tensor)
    scalar = same and changed.ndim == 0
    return (of_one and changed is _GONE) or scalar
