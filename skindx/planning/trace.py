"""The layer-wise trace of one iteration: what backward makes, how large, and when."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, model_validator

from skindx.config import Settings
from skindx.errors import UserError
from skindx.files import write_json

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Trace(Settings):
    """One iteration on one rank, without communication; tensors in backward order."""

    names: tuple[str, ...] = Field(min_length=1)
    sizes_bytes: tuple[NonNegativeInt, ...]
    """As sent: half of fp32's where gradients travel in 16 bits."""
    backward_s: tuple[Seconds, ...]
    """Time from the gradient before (for the first: from the end of forward) to this one."""
    forward_s: Seconds = 0.0
    update_s: Seconds = 0.0

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        counts = {len(self.names), len(self.sizes_bytes), len(self.backward_s)}
        if len(counts) > 1:
            raise ValueError("names, sizes_bytes and backward_s must be equally many")
        if len(set(self.names)) < len(self.names):
            raise ValueError("a name stands for one tensor only")
        return self

    @property
    def ready_s(self) -> list[float]:
        """When each gradient is complete, counted from the start of the iteration."""
        return list(accumulate(self.backward_s, initial=self.forward_s))[1:]

    def write(self, path: Path) -> None:
        """Write JSON, atomically."""
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote. Raises UserError for what is no trace."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path} does not exist; check the path.") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"{path} is no JSON file of a trace ({error}).") from None
        if not isinstance(raw, dict):
            raise UserError(f"{path} must hold the fields of a trace, not a list or a value.")
        return cls.parse(raw, origin=str(path))
