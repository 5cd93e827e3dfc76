"""The file of a sparse export: which of a network's convolutions skip zeros, and where measured."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from skindx.core.machine import machine_fingerprint
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.models.exports.sparse.convolution import SOURCE

Choice = Literal["sparse", "packed", "torch", "bf16"]
"""Zeros skipped; oneDNN with weights packed before; torch's own call; oneDNN in bf16."""
Setting = Literal["one", "many", "one_threaded", "many_threaded"]
"""One image or several at once, by one thread or by several."""


class LayerRecord(Settings):
    """One convolution."""

    zeros: float = Field(ge=0, le=1)
    """Share of zeros in its input, of calibration images."""
    choices: dict[Setting, Choice] = Field(default_factory=dict)
    dense: dict[Setting, Choice] = Field(default_factory=dict)
    """What was fastest without skipping zeros."""


class SparseRecord(Settings):
    """One network: its weights stay where the bundle has them."""

    format: Literal[1] = 1
    machine: str = ""
    """The `fingerprint` of the machine that measured."""
    layers: dict[str, LayerRecord] = Field(default_factory=dict)
    """By the name of the convolution in the network."""
    alone: str = ""
    """Why the network is left alone, in a sentence."""

    @classmethod
    def read(cls, file: Path) -> "SparseRecord":
        """Read an untrusted file. Raises UserError."""
        return cls.parse(read_json(file), str(file), expand=False)


def fingerprint() -> str:
    """Return what stands for this machine and its kernel: choices hold where it is the same."""
    return machine_fingerprint(SOURCE.digest())
