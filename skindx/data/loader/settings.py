"""How training reads and changes its images: threads, look-ahead, cache, augmentation."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from skindx.core.machine import go_offline
from skindx.core.settings_base import Settings

if TYPE_CHECKING:
    from albumentations import BasicTransform


class NoCache(Settings):
    """Read and decode the files again in each epoch."""

    kind: Literal["none"] = "none"


class MemoryCache(Settings):
    """Keep the encoded bytes in memory: files are read in the first epoch only.

    The ranks of a node share one copy, where the system lets them (Linux).
    """

    kind: Literal["memory"] = "memory"


class DiskCache(Settings):
    """Keep decoded, shrunk images in a memory-mapped file that all ranks of a node share."""

    kind: Literal["disk"] = "disk"
    folder: Path | None = None
    """Folder of the file, best on a local SSD; null: `cache` in the dataset folder."""
    margin: float = Field(1.25, ge=1, le=4)
    """Images are kept this much larger than evaluation's side, so that crops stay sharp."""


Cache = Annotated[NoCache | MemoryCache | DiskCache, Field(discriminator="kind")]


class LoaderSettings(Settings):
    """Images come ready as uint8; the model normalises them on its device."""

    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads of each rank; auto: the cores it may use, shared among the ranks of its node."""
    prefetch: int = Field(4, ge=1, le=64)
    """Batches that are ready or in work before training asks for them."""
    cache: Cache = MemoryCache()
    sharded: bool | Literal["auto"] = "auto"
    """Every rank keeps and sees a share of the images instead of all.

    auto: only when a node's memory cannot hold what its ranks would keep otherwise.
    """
    exchange: Literal["auto", "send", "read", "never"] = "auto"
    """Whether shares are drawn again in each epoch, and how a rank gets the images new to it.

    send: the ranks send each other the encoded bytes between epochs (Kumar et al. 2017,
    arXiv 1711.00705): of a set of S bytes on P ranks, S (1 - 1/P) travel. It wins where reading
    the files is slower than the network between the ranks: on a file server, which all ranks ask
    at once and which takes each small file by itself. read: each rank reads them from the files,
    which wins on a fast disk of its own, and else costs the server the same bytes. The weights are
    the same. never: a rank sees the same share in each epoch. auto: send, where
    there is something in memory; never with a cache on disk, whose shares are files of their own.
    """

    @model_validator(mode="after")
    def _can_exchange(self) -> Self:
        if self.exchange in ("send", "read") and self.cache.kind == "disk":
            raise ValueError(
                f"loader.exchange={self.exchange} needs a cache in memory; set "
                "loader.cache.kind=memory, or loader.exchange=never"
            )
        return self

    @property
    def redraws(self) -> bool:
        """True when shares, where there are any, are drawn again in each epoch."""
        return self.exchange != "never" and self.cache.kind != "disk"


class Augment(Settings):
    """Random changes of a training image, drawn again in each epoch."""

    scale: tuple[float, float] = (0.5, 1.0)
    """Smallest and largest share of the image that the random crop shows, 0 < a <= b <= 1."""
    flip: bool = True
    """Mirror and quarter turns: skin has no upright."""
    rotate: float = Field(0, ge=0, le=180, exclude_if=lambda angle: not angle)
    """Largest angle of a further turn, in degrees; 180: any. The crop is mirrored at its edges."""
    colour: float = Field(0.15, ge=0, le=0.5)
    """Strength of the change of brightness, contrast and saturation; hue by a tenth of it."""
    white: float = Field(0, ge=0, le=0.5, exclude_if=lambda strength: not strength)
    """Strength of a gain for each colour channel of its own: another camera's white balance."""
    blur: float = Field(0, ge=0, le=1)
    """How often an image is blurred: a photo out of focus."""
    sharpen: float = Field(0, ge=0, le=1)
    """How often it is sharpened: a telephone's own processing."""
    holes: float = Field(0, ge=0, le=1)
    """How often one to three rectangles are painted over (coarse dropout; Cutout, 2017)."""
    pipeline: dict[str, Any] | None = Field(None, exclude_if=lambda given: given is None)
    """A pipeline of albumentations after these changes, as `albumentations.to_dict` gives it.

    It takes a square and returns one of the same side, 8 bits a channel.
    """

    @field_validator("scale")
    @classmethod
    def _shares(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not 0 < scale[0] <= scale[1] <= 1:
            raise ValueError("give two shares [smallest, largest], both above 0 and at most 1")
        return scale

    @field_validator("pipeline")
    @classmethod
    def _keeps_squares(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if given is not None:
            try:
                given = json.loads(json.dumps(given))  # tuples, which a file does not keep
                changed = loaded_pipeline(given)(image=np.zeros((64, 64, 3), np.uint8))["image"]
            except Exception as error:  # code of others, on settings of others
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise ValueError(f"albumentations cannot create this pipeline ({reason})") from None
            if changed.shape != (64, 64, 3) or changed.dtype != np.uint8:
                raise ValueError(
                    "the pipeline turns an image of 64 x 64 x 3 pixels of uint8 into "
                    f"{changed.shape} of {changed.dtype}; remove the steps that resize, normalise "
                    "or make tensors"
                )
        return given

    @property
    def composed(self) -> bool:
        """True when there is a change that only albumentations makes, one image after the other."""
        changes = (self.rotate, self.white, self.blur, self.sharpen, self.holes)
        return any(changes) or self.pipeline is not None


def loaded_pipeline(given: dict[str, Any]) -> "BasicTransform":
    """Return the pipeline that a mapping describes; only albumentations' own steps can stand in it.

    What `albumentations.save` writes into a YAML file is such a mapping too.
    """
    go_offline()
    import albumentations as A

    return A.from_dict(given)
