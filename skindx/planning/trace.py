"""The layer-wise trace of one iteration: what backward makes, how large, and when."""

from itertools import accumulate
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MEGABYTE, parse_json, read_plain

MOST_S = 1e9
"""Seconds, thirty years: no step takes as long."""
MOST_BYTES = 10**15
MOST_TENSORS = 4096
"""Of one network: three times those of the largest published ones; plans look at pairs of them."""
MOST_FILE = 64 * MEGABYTE
"""Bytes of a file with a trace."""

Seconds = Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Name = Annotated[str, Field(max_length=1000)]


class Trace(Settings):
    """One iteration on one rank, without communication; tensors in backward order."""

    names: tuple[Name, ...] = Field(min_length=1, max_length=MOST_TENSORS)
    sizes_bytes: tuple[Bytes, ...] = Field(max_length=MOST_TENSORS)
    """As sent: half of fp32's where gradients travel in 16 bits."""
    backward_s: tuple[Seconds, ...] = Field(max_length=MOST_TENSORS)
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
        return cls.parse(
            parse_json(read_trace_file(path), str(path)), origin=str(path), expand=False
        )


def read_trace_file(path: Path) -> bytes:
    """Return the content of a plain file, reached by a link or not. Raises UserError."""
    try:
        plain = path.resolve(strict=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except (OSError, RuntimeError) as error:  # a long name, a link that leads to itself
        raise UserError(f"{str(path)[:200]} cannot be read ({str(error)[:200]}).") from None
    return read_plain(plain, MOST_FILE)
