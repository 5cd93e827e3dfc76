"""Heads as a task of the loop: mixed features and their labels, the recipe's loss, validation."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.data.loader.batches import epoch_plan, steps_of
from skindx.training.checkpoint.finished import FinishedMember
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Batch, EpochSpeed, Piece, Row, Training, setup
from skindx.training.tasks.head_data import HeadData, HeadStack, accuracy, finished_head
from skindx.training.tasks.losses import as_probabilities, build_loss
from skindx.training.tasks.mixing import Mixture, draw_mixture
from skindx.training.tasks.optimizer import WeightAverage, build_optimizer

_VIEWS = 0x766965
"""Keeps the draw of views apart from that of the order, which has the same seeds."""

Plan = list[list[NDArray[np.int64]]]


@dataclass
class HeadsTask:
    """Heads of one trunk, one shape and one recipe, each on its own images."""

    heads: Sequence[HeadData]
    recipe: Recipe
    mesh: Mesh
    criteria: Sequence[nn.Module]
    place: str
    """The name of the head in the whole network."""
    label: str
    _finished: list[FinishedMember] = field(default_factory=list, init=False)

    @property
    def name(self) -> str:
        return self.label

    @property
    def seed(self) -> int:
        """The first head's: only what is drawn beside the images takes it."""
        return self.heads[0].member.seed

    @property
    def epochs(self) -> int:
        return self.recipe.epochs

    @property
    def images(self) -> int:
        """Training images of the first head; all have as many steps."""
        return len(self.heads[0].train_N)

    @property
    def batch(self) -> int:
        return self.recipe.batch

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        plans = [self._plan(head, epoch) for head in self.heads]
        views = [_views(head, epoch) for head in self.heads]
        for step in range(first, len(plans[0])):
            shares = [plan[step] for plan in plans]
            counts = [sum(len(share) for share in head_shares) for head_shares in shares]
            parts = [
                self._loaded(head, head_shares, view_N, epoch, step)
                for head, head_shares, view_N in zip(self.heads, shares, views, strict=True)
            ]
            local_count = len(shares[0][self.mesh.data.rank])
            yield Batch(self._pieces(parts, counts), local_count=local_count, count=counts[0])

    def _plan(self, head: HeadData, epoch: int) -> Plan:
        world, seed = self.mesh.data.size, head.member.seed
        return epoch_plan(len(head.train_N), self.batch, seed, epoch, world, sharded=False)

    def _loaded(
        self,
        head: HeadData,
        shares: Sequence[NDArray[np.int64]],
        view_N: NDArray[np.int64],
        epoch: int,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """Return features B x D and targets of a head's part of a step."""
        rank, mixture = self.mesh.data.rank, None
        numbers_L = shares[rank]
        if mix := self.recipe.mix_at(epoch):
            # Features are blended as wholes: a rectangle of them means nothing.
            mix = mix.model_copy(update={"cutmix": 0.0})
            seeds = (head.member.seed, epoch, step)
            mixture = draw_mixture(mix, shares, rank, seeds, sharded=False)
            numbers_L = np.concatenate([numbers_L, mixture.borrowed])
        features_LD = _rows(head, numbers_L, view_N)
        targets = torch.from_numpy(head.labels_P[head.train_N[numbers_L]])
        if mixture:
            return _blend(mixture, features_LD, as_probabilities(targets, head.classes))
        return features_LD, targets

    def _pieces(
        self, parts: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int]
    ) -> Callable[[], Sequence[Piece]]:
        def pieces() -> Sequence[Piece]:
            device = self.mesh.device
            most = max(len(features_BD) for features_BD, _ in parts)
            features_MBD = torch.zeros(len(parts), most, self.heads[0].dimensions)
            for number, (features_BD, _) in enumerate(parts):
                features_MBD[number, : len(features_BD)] = features_BD
            targets = [target.to(device) for _, target in parts]
            return [(features_MBD.to(device), (targets, counts))]

        return pieces

    def loss(self, outputs: Any, targets: Any, count: int) -> Tensor:
        """Return the summed loss; each head's gradient is that of its own mean."""
        given, counts = targets
        losses = [
            criterion(logits_BC[: len(target)].float(), target) * (count / head_count)
            for criterion, logits_BC, target, head_count in zip(
                self.criteria, outputs, given, counts, strict=True
            )
        ]
        return torch.stack(losses).sum()

    def rate(self, step: int) -> float:
        return self.recipe.rate_at(step, steps_of(self.images, self.batch))

    def validate(
        self, network: nn.Module, speed: EpochSpeed, stop_requested: Callable[[], bool]
    ) -> dict[str, Any]:
        """Return each head's accuracy on its validation images, and their means."""
        self._finished = self._validated(network)
        accuracies = [accuracy(finished) for finished in self._finished]
        figures = {
            f"{head.member.name}/{key}": value
            for head, (top1, balanced) in zip(self.heads, accuracies, strict=True)
            for key, value in (("val_top1", top1), ("val_balanced", balanced))
        }
        return {
            "val_top1": round(float(np.mean([top1 for top1, _ in accuracies])), 4),
            "val_balanced": round(float(np.mean([balanced for _, balanced in accuracies])), 4),
            "pictures_per_s": round(speed.images_per_s * len(accuracies), 1),
            "wait_share": speed.wait_share,
            "memory_gb": speed.memory_gb,
            **(figures if len(accuracies) > 1 else {}),
        }

    def _validated(self, network: nn.Module) -> list[FinishedMember]:
        assert isinstance(network, HeadStack)
        return [
            finished_head(network, number, head, self.place)
            for number, head in enumerate(self.heads)
        ]

    def enough(self, history: Sequence[Row]) -> str:
        return ""

    def line(self, row: Row) -> str:
        return (
            f"epoch {row['epoch']:>3}  loss {row['loss'] / len(self.heads):.3f}  "
            f"val top-1 {row['val_top1']:.3f}  balanced {row['val_balanced']:.3f}  "
            f"({len(self.heads)} heads)"
        )

    def result(
        self, network: nn.Module, stop_requested: Callable[[], bool]
    ) -> list[FinishedMember]:
        return self._finished or self._validated(network)


def _views(head: HeadData, epoch: int) -> NDArray[np.int64]:
    """Return which view of each training image an epoch shows."""
    rng = np.random.default_rng((head.member.seed, epoch, _VIEWS))
    return rng.integers(len(head.features), size=len(head.train_N))


def _rows(head: HeadData, numbers_L: NDArray[np.int64], view_N: NDArray[np.int64]) -> Tensor:
    rows_L, views_L = head.train_N[numbers_L], view_N[numbers_L]
    features_LD = np.empty((len(rows_L), head.dimensions), np.float32)
    for view, view_PD in enumerate(head.features):
        shown_L = views_L == view
        features_LD[shown_L] = view_PD[rows_L[shown_L]]
    return torch.from_numpy(features_LD)


def _blend(mixture: Mixture, features_LD: Tensor, targets_LC: Tensor) -> tuple[Tensor, Tensor]:
    """Mixup of features (Verma et al. 2019, arXiv 1806.05236, at the last layer)."""
    kept_B1 = torch.from_numpy(mixture.kept_B)[:, None]
    partner_B = torch.from_numpy(mixture.partner_B)
    count = len(partner_B)
    return (
        features_LD[:count] * kept_B1 + features_LD[partner_B] * (1 - kept_B1),
        targets_LC[:count] * kept_B1 + targets_LC[partner_B] * (1 - kept_B1),
    )


def setup_heads(
    settings: TrainSettings,
    heads: Sequence[HeadData],
    *,
    label: str,
    place: str,
    mesh: Mesh,
    say: Callable[[str], None],
) -> Training[list[FinishedMember]]:
    """Return heads of one shape, recipe and number of steps before their first step."""
    recipe, kind = settings.recipe_of(heads[0].member), heads[0].member.head
    result = [head.scale() for head in heads]
    scales = [(torch.from_numpy(mean_D), torch.from_numpy(std_D)) for mean_D, std_D in result]
    classes = heads[0].classes
    stack = HeadStack(kind, scales, classes, [head.member.seed for head in heads]).to(mesh.device)
    criteria = [
        build_loss(head.labels_P[head.train_N], classes, recipe).to(mesh.device) for head in heads
    ]
    clip = mesh.settings.gradient_clip
    alone = _clipped_here(mesh)
    task = HeadsTask(heads, recipe, alone, criteria, place, label)
    training = setup(
        task,
        stack,
        build_optimizer(stack, recipe, ()),
        average=WeightAverage(stack, recipe.ema) if recipe.ema else None,
        settings=settings,
        mesh=alone,
        say=say,
    )
    training.engine.precondition = partial(_clip_heads, clip) if clip else None
    return training


def _clipped_here(mesh: Mesh) -> Mesh:
    """Return a mesh whose engine leaves whole gradients to `_clip_heads`.

    The engine would clip the gradient of all heads together, and ZeRO would keep a part of it on
    each rank; heads are too small to be shared out.
    """
    other = copy(mesh)
    settings = mesh.settings.model_copy(update={"gradient_clip": 0.0, "zero": 0})
    object.__setattr__(other, "settings", settings)  # a mesh of a test may be of another class
    return other


def _clip_heads(norm: float, stack: torch.nn.Module) -> None:
    assert isinstance(stack, HeadStack)
    for head in stack.heads:
        torch.nn.utils.clip_grad_norm_(head.parameters(), norm)
