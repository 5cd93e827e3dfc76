"""The file of a sparse export: which of a network's convolutions skip zeros, and where measured."""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from skindx.config import Settings
from skindx.models.exports.processor import cpu_flags, processor_facts
from skindx.models.exports.sparse.compiling import kernel_digest
from skindx.untrusted import read_json

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
    facts = [*processor_facts(), sorted(cpu_flags()), kernel_digest()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
