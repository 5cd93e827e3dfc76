"""Settings of checkpoints: when they are saved, how many stay, and how faults are answered."""

from pydantic import Field

from skindx.core.settings_base import Settings


class CheckpointSettings(Settings):
    """A checkpoint is written after each epoch, at a stop, and in between as often as set here."""

    every_minutes: float | None = Field(10.0, gt=0, le=1e6)
    """Time between checkpoints; null: only after epochs."""
    every_steps: int | None = Field(None, ge=1, le=10**9)
    """Save every so many steps as well."""
    keep: int = Field(2, ge=1, le=10_000)
    """Checkpoints that stay: the newest, and those to fall back on when it is damaged."""
    grace_s: float = Field(25.0, gt=0, le=1e6)
    """SIGTERM: the ranks have so long to save and end. `torchrun`, DeepSpeed's launcher and Slurm
    kill after 30 s."""
    bad_steps: int = Field(5, ge=0, le=10**9)
    """Most steps in a row without a finite loss, which are skipped; one more ends the training."""
