"""Settings of `skindx bench devices gpu-release`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from skindx.core.settings_base import Settings

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
