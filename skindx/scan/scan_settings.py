"""How a photo is searched: tiles, scales, thresholds. They decide the answer."""

from typing import Literal

from pydantic import Field

from skindx.core.settings_base import Settings


class ScanSettings(Settings):
    """Settings of one scan for every photo; a scan that goes on must have the same."""

    tile: int | None = Field(None, ge=64, le=4096, multiple_of=32)
    """Pixels of a tile's side; none: what the bundle's detector was trained on. Larger tiles show
    more around a lesion and waste less on overlaps."""
    overlap: float = Field(0.25, ge=0, le=0.75)
    """Share of a tile's side that neighbours have in common, at least: a lesion of at most this
    size is whole in one tile of the finest scale."""
    scales: int | None = Field(None, ge=1, le=16)
    """How many scales; none: until a tile holds the photo."""
    step: Literal[2, 4] = 4
    """How many times coarser a scale is than the one before."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the detector's convolutions; auto: bf16 where this machine's processor has it, the same
    then for all workers."""
    confidence: float | None = Field(None, ge=0, lt=1)
    """Least score of a box; none: the bundle's own."""
    least_side: float = Field(10.0, ge=0, le=1e6)
    """Pixels of a lesion's longer side; what is smaller, as freckles are, is left out."""
    least_skin: float = Field(0.02, ge=0, le=1)
    """Share of a tile with a colour of skin, below which it is skipped."""
    margin: float = Field(1.5, ge=1, le=4)
    """Side of the crop that the ensemble sees, over the longer side of the box."""
    batch: int = Field(8, ge=1, le=256)
    """Tiles, or lesions, that go through the networks at once; a task of the queue holds so many
    or a multiple."""
    miss_rate: float | None = Field(None, gt=0, lt=1)
    """Level of the bundle's urgent risk that decides what is urgent; none: the default."""
    score_map: bool = False
    """Also blend the detector's scores over all tiles into a map (Zarr)."""
