"""Settings, what the loop needs of a slice, and where slices find datasets, weights, commands.

No torch is imported here: the loop is light, and each command is a process of its own.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import yaml
from pydantic import Field, model_validator

from skindx.core.atomic_files import sha256_file, write_text
from skindx.core.errors import JobError, UserError
from skindx.core.machine import python_command
from skindx.core.settings_base import Settings
from skindx.data.layout import MANIFEST, STORE, TAXONOMY
from skindx_bench.harness.parts import Outcome
from skindx_bench.harness.result import Figure, Result, hardware

_PRESETS = Path(__file__).parents[1] / "presets"


class Config(Settings):
    """Which slice, for how long, and what it trains."""

    slice: Literal[1, 2, 3, 4] = 1
    """1: the tests marked `gpu`; 2: the trainer beside timm's script and the ceiling; 3: the
    release's networks; 4: LARS and LAMB at sixteen times the batch."""
    limit_s: float = Field(540, gt=0)
    """Seconds after which the command has ended, whatever is finished."""
    reserve_s: float = Field(60, gt=0)
    """Of these, for trainings to save where they are and for the state to be written."""
    folder: Path = Path("runs/gpu-release")
    """state-N travels, in files of at most `part_mb`; work-N stays; gpu-release-N-….json."""
    part_mb: float = Field(60, gt=0, le=60)
    """Most megabytes of one file that travels."""
    state_mb: float = Field(60, gt=0)
    """Most megabytes of a state; where it would have more, checkpoints are left out, and a training
    that was stopped begins again elsewhere."""
    prepare: bool = False
    """Only write dataset and weights of the slice into inputs-N, for a machine without them."""
    fake: bool = False
    """Let the CPU stand in for the GPU, at tiny sizes: only to see that everything runs."""
    turns: int = Field(3, ge=1)
    """Slice 2: processes, of `rounds` each."""
    turn_s: float = Field(240, gt=0)
    """Slice 2: seconds for one process; it is not begun where fewer are left."""
    rounds: int = Field(5, ge=3)
    steps: int = Field(16, ge=2)
    batch: int = Field(256, ge=2)
    dataset: Path | None = None
    """Slices 3 and 4; none: runs/ham10000/data, runs/isic9/data."""
    weights: Path | None = None
    """Folder of the weights from which networks start; none: $SKINDX_REAL/weights."""
    members: Path = Path("models/ham10000/training")
    """Slice 3: MEMBER/train.yaml of each network."""
    folds: int = Field(5, ge=2)
    study: Path = _PRESETS / "large-batches.yaml"
    """Slice 4, as of bench convergence."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=2)
    margin: float = Field(1.0, gt=0)
    """Slice 4: points of balanced accuracy that may be lost."""

    @model_validator(mode="after")
    def _has_time(self) -> Self:
        if self.reserve_s >= self.limit_s:
            raise ValueError("reserve_s must be less than limit_s")
        return self


Files = Mapping[str, Path]


class Piece(NamedTuple):
    """One command of a slice."""

    name: str
    command: Sequence[str]
    whole_s: float = 0
    """Seconds that one needs which cannot go on from its middle."""
    environment: Mapping[str, str] = {}


class Slice(Protocol):
    """What the loop needs of a slice; paths of the working folder are absolute."""

    needs_gpu: bool

    def inputs(self) -> Files:
        """Return the files of dataset and weights by the names under which they travel."""

    def made_from(self) -> dict[str, Any]:
        """Return plain values of all that decides the figures. Raises UserError without inputs."""

    def next(self, work: Path) -> Piece | None:
        """Return the first command that has not finished."""

    def take(self, work: Path, piece: Piece, outcome: Outcome) -> None:
        """Note what has finished. Raises JobError for a command that failed."""

    def progress(self, work: Path) -> str:
        """Return what is finished, for a sentence that begins with it."""

    def carried(self, work: Path) -> Iterator[Path]:
        """Yield the files without which another machine could not go on."""

    def result(self, work: Path) -> Result:
        """Return the figures of a slice that is finished."""


def refuse_failed(piece: Piece, outcome: Outcome) -> None:
    """Raise JobError for a command that failed by itself."""
    if outcome.status == "failed":
        raise JobError(f"{piece.name} failed; its log is {outcome.log}. The same command retries.")


def came(folder: Path, number: int) -> Path:
    """Return where the inputs of a slice are unpacked that have travelled."""
    return folder / f"came-{number}"


class DatasetSource:
    """Where a slice finds its images and starting weights: here, or among what has travelled."""

    def __init__(self, settings: Config, folder: Path, dataset: Path | None, name: str) -> None:
        self._here = dataset or settings.dataset or Path("runs") / name / "data"
        real = os.environ.get("SKINDX_REAL")
        self._weights = settings.weights or (Path(real) / "weights" if real else None)
        self._came = came(folder, settings.slice)

    def folder(self) -> Path:
        """Return the dataset's folder."""
        here = self._here if (self._here / MANIFEST).is_file() else self._came / "dataset"
        return here.absolute()

    def manifest(self) -> str:
        """Return the hash of the dataset's manifest."""
        return sha256_file(self.folder() / MANIFEST)

    def _weight(self, name: str) -> Path:
        here = self._weights / name if self._weights else self._came / "weights" / name
        return here if here.is_file() else self._came / "weights" / name

    def check(self, weights: Sequence[str]) -> None:
        """Raise UserError for a dataset or weights that are not here."""
        if not (self.folder() / MANIFEST).is_file():
            raise UserError(
                f"{self._here} is no dataset; build it first, give it with --set dataset=…, or "
                "bring it with what --set prepare=true writes where it is."
            )
        for name in weights:
            if not self._weight(name).is_file():
                raise UserError(
                    f"{name}, from which a network starts, is not there; set SKINDX_REAL, or give "
                    "its folder with --set weights=…"
                )

    def files(self, weights: Sequence[str]) -> Files:
        """Return dataset and weights by the names under which they travel."""
        self.check(weights)
        folder = self.folder()
        found = {f"dataset/{name}": folder / name for name in (MANIFEST, TAXONOMY)}
        store = sorted(file for file in (folder / STORE).rglob("*") if file.is_file())
        found |= {f"dataset/{file.relative_to(folder)}": file for file in store}
        return found | {f"weights/{name}": self._weight(name) for name in weights}

    def link_weights(self, work: Path, weights: Sequence[str]) -> None:
        """Let the working folder hold the weights under their names."""
        for name in weights:
            link = work / "weights" / name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self._weight(name).absolute())


def of_run(run: Path) -> Iterator[Path]:
    """Yield what of a training run another machine needs to go on: members, last checkpoints."""
    yield from run.glob("train.yaml")
    yield from (file for file in run.glob("members/*/*") if file.is_file())
    for member in run.glob("checkpoints/*"):
        saved = sorted(index.parent for index in member.glob("epoch-*/index.json"))
        for folder in saved[-1:]:
            yield from (file for file in folder.rglob("*") if file.is_file())


def bench(name: str, file: Path, sets: Mapping[str, Any]) -> list[str]:
    """Return the command of a benchmark that writes its JSON into a file."""
    given = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    return python_command("-m", "skindx_bench", name, "--json", str(file), *given)


def accelerator(settings: Config) -> str:
    """Return where networks are trained: on a GPU where there is one."""
    if settings.fake:
        return "cpu"
    return "cpu" if hardware()["accelerator"] in ("none", "") else "cuda"


def figures_of(written: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a benchmark's JSON."""
    return {
        key: Figure(own["value"], own["unit"], own["n"], tuple(own["spread"]))
        for key, own in written["figures"].items()
    }


def last_epoch(history: Path) -> dict[str, float]:
    """Return the figures of a training's last epoch."""
    keys, *rows = (line.split(",") for line in history.read_text(encoding="utf-8").splitlines())
    named = zip(keys, rows[-1], strict=True)
    return {key: float(value) for key, value in named if value}


def write_yaml(file: Path, value: Mapping[str, Any]) -> None:
    """Write settings, whole or not at all."""
    write_text(file, yaml.safe_dump(dict(value), sort_keys=False))


def read_yaml(file: Path) -> dict[str, Any]:
    """Read settings of ours. Raises UserError for a file that is not there."""
    if not file.is_file():
        raise UserError(f"{file} is not there.")
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found
