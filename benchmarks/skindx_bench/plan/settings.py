"""Settings of the plan bench."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from skindx.core.settings_base import Settings

Kind = Literal[
    "dense", "fused", "per-tensor", "fused+bf16", "topk", "gtopk", "powersgd", "hierarchical"
]


class Layout(Settings):
    """Nodes with as many ranks each."""

    nodes: int = Field(ge=1, le=16)
    ranks_per_node: int = Field(1, ge=1, le=8)

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.ranks_per_node


class Config(Settings):
    """Each part can be left out."""

    parts: tuple[Literal["waiting", "real", "public", "search"], ...] = (
        "waiting",
        "real",
        "public",
        "search",
    )
    """waiting: a rank waits as long as its layers would compute; real: ranks train."""
    layouts: tuple[Layout, ...] = (
        Layout(nodes=2),
        Layout(nodes=4),
        Layout(nodes=2, ranks_per_node=2),
    )
    rates_mbit: tuple[Annotated[float, Field(gt=0)], ...] = (100, 500, 1000)
    models: tuple[str, ...] = ("mobilenetv3_small_050", "mobilenetv2_100", "fc-heavy")
    """timm models; fc-heavy is two convolutions and three fully connected layers."""
    kinds: tuple[Kind, ...] = (
        "dense",
        "fused",
        "per-tensor",
        "fused+bf16",
        "topk",
        "gtopk",
        "powersgd",
        "hierarchical",
    )
    forward_s: float = Field(0.1, gt=0)
    backward_s: float = Field(0.2, gt=0)
    rounds: int = Field(5, ge=2)
    links_s: float = Field(30, gt=0)
    """Seconds in which the links of a layout are measured, at most."""
    real_models: tuple[str, ...] = ("test_resnet", "mobilenetv2_050")
    real_rates_mbit: tuple[Annotated[float, Field(gt=0)], ...] = (100, 1000)
    real_kinds: tuple[Kind, ...] = ("dense", "fused", "gtopk", "powersgd")
    real_size: int = Field(96, ge=32)
    real_batch: int = Field(32, ge=4)
    real_epochs: int = Field(3, ge=2)
    real_images: int = Field(192, ge=16)
    traces: Path | None = None
    """Folder with bcaffe_logdata and pipedream_profiles; none: the public part is left out."""
