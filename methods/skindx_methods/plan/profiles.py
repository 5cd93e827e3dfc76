"""trace.json: the profiles of the networks of a config on one kind of node, and their reading."""

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from skindx.core.atomic_files import write_json
from skindx.core.cost.profile import (
    MOST_TENSORS,
    Bytes,
    Images,
    Name,
    Number,
    Profile,
    ProfiledLayer,
    Trace,
)
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MEGABYTE, parse_json, read_plain

MOST_FILE = 64 * MEGABYTE
"""Most bytes of a file with a trace."""
FORMAT: Literal[1] = 1

_GONE = (
    *("scaled_to", "device_spread", "copy_s", "forward_spread", "backward_spread"),
    *("memory_bytes_s", "eigen_s", "layer_s"),
)
"""Keys of traces of earlier versions that no plan has used."""


class Profiles(Settings):
    """The file of `skindx plan measure`: one kind of node, and the networks of a config."""

    format: Literal[1] = FORMAT
    version: Name = ""
    """Version of skindx that measured."""
    source: Literal["measured", "given"] = "measured"
    """Origin of the times; given: they come from another program."""
    host: Name = ""
    device: Literal["cpu", "cuda"] = "cpu"
    ranks: Images = 1
    """Number of ranks of the node that computed at the same time."""
    cores: Images = 1
    """Cores of one rank."""
    dataset: Name = ""
    """Digest of the dataset's manifest."""
    images: Number = 0
    base_bytes: Bytes = 0
    """Memory of a process before it has a network."""
    networks: tuple[Profile, ...] = Field(min_length=1, max_length=MOST_TENSORS)

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote, in this version or an earlier one. Raises UserError."""
        raw = parse_json(read_trace_file(path), str(path))
        if raw.get("format", FORMAT) != FORMAT:
            raise UserError(
                f"{path} has format {str(raw['format'])[:40]!r}, but this version reads {FORMAT}; "
                "measure a new trace with `skindx plan measure`."
            )
        left: list[object] = [raw]
        while left:
            part = left.pop()
            if isinstance(part, dict):
                for key in _GONE:
                    part.pop(key, None)
                left += part.values()
            elif isinstance(part, list):
                left += part
        return cls.parse(raw, origin=str(path), expand=False)


def read_trace_file(path: Path) -> bytes:
    """Return the content of a plain file, reached by a link or not. Raises UserError."""
    try:
        plain = path.resolve(strict=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except (OSError, RuntimeError) as error:  # a long name, a link that leads to itself
        raise UserError(
            f"the trace {str(path)[:200]} cannot be read ({str(error)[:200]}); measure a new one "
            "with `skindx plan measure`."
        ) from None
    return read_plain(plain, MOST_FILE)


def compute_scale(profile: Profile, images: float) -> float:
    """Return what the layers' times are multiplied by for another batch.

    A line through the whole steps that were timed; with fewer than two, time is proportional.
    """
    points = sorted(profile.at, key=lambda point: point.batch)
    if len(points) < 2 or points[0].batch == points[-1].batch:
        return images / profile.batch
    first, last = points[0], points[-1]
    slope = (last.compute_s - first.compute_s) / (last.batch - first.batch)
    if slope <= 0:
        return images / profile.batch
    seconds = first.compute_s + slope * (images - first.batch)
    known = first.compute_s + slope * (profile.batch - first.batch)
    return max(seconds, 0.2 * first.compute_s * images / first.batch) / known


def trace_of(profile: Profile, *, scale: float = 1.0) -> Trace:
    """Return one iteration, tensor by tensor in backward order, times multiplied by `scale`.

    Raises UserError for a layer that was never timed, and for times that no step takes.
    """
    names: list[str] = []
    sizes: list[int] = []
    seconds: list[float] = []
    waiting_s = 0.0
    for layer in reversed(profile.layers):
        waiting_s += _timed(profile, layer, "backward_s") * scale
        elements = [math.prod(shape) for shape in layer.shapes]
        for number, count in enumerate(elements or [layer.parameter_bytes // 4]):
            if count:
                names.append(f"{layer.name}/{number}" if number else layer.name)
                sizes.append(4 * count)
                seconds.append(waiting_s)
                waiting_s = 0.0
    if not names:
        raise UserError(f"{profile.name} has no parameters to train; use another network.")
    raw = {
        "names": names,
        "sizes_bytes": sizes,
        "backward_s": (*seconds[:-1], seconds[-1] + waiting_s),
        "forward_s": scale * sum(_timed(profile, layer, "forward_s") for layer in profile.layers),
        "update_s": profile.update_s,
    }
    return Trace.parse(raw, origin=f"a step of {profile.name}", expand=False)


def compute_s(profile: Profile) -> float:
    """Return seconds of forward and backward at the profile's batch, layer by layer."""
    return sum(
        _timed(profile, layer, "forward_s") + _timed(profile, layer, "backward_s")
        for layer in profile.layers
    )


def _timed(profile: Profile, layer: ProfiledLayer, key: str) -> float:
    seconds: float | None = getattr(layer, key)
    if seconds is None:
        raise UserError(
            f"the layer {layer.name} of {profile.name} has no measured time ({key} is null); "
            "measure it with `skindx plan measure`, or write a time into the trace."
        )
    return seconds
