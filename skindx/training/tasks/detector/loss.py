"""ultralytics' v8 loss as a sum, so that N ranks with uneven shares equal one process.

The loss (box, class and distribution focal terms) is a sum over anchors, divided by the sum of the
target scores of the batch (task-aligned learning: Feng et al. 2021, arXiv 2108.07755). That divisor
couples the images of a batch: a mean of the ranks' own losses would weigh an image by what else
its rank drew. So each rank returns its sum and its scores, and the divisor is that of all ranks.
What still differs between N ranks and one is batch norm, whose statistics each rank takes from its
own share unless they are synchronised.
"""

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from skindx.training.parallel.mesh import Mesh

BOX_GAIN, CLASS_GAIN, FOCAL_GAIN = 7.5, 1.0, 1.5
"""ultralytics' weights of the three terms, but twice its class term: lesions fill the image."""

# B = images, K = boxes of all images


class DetectionLoss:
    """The v8 loss of one rank's share, not yet divided by the target scores."""

    def __init__(self, net: nn.Module) -> None:
        """Take ultralytics' DetectionModel, already on its device."""
        from ultralytics.utils.loss import v8DetectionLoss

        net.args = SimpleNamespace(box=BOX_GAIN, cls=CLASS_GAIN, dfl=FOCAL_GAIN)  # type: ignore[assignment]
        self._loss = v8DetectionLoss(net)
        assigner = self._loss.assigner

        def assign(*arguments: Any, **named: Any) -> Any:
            found = assigner(*arguments, **named)
            self._scores = found[2].sum()
            return found

        self._loss.assigner = assign

    def __call__(
        self, found: dict[str, Any], boxes_K4: Tensor, labels_K: Tensor, image_K: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return (loss sum, target scores), both scalars.

        `found` is the output of the network in training mode. `boxes_K4` are centre x, y, width and
        height as shares of the square, `image_K` the place in the batch of each box's image.
        """
        exact = {
            "boxes": found["boxes"].float(),
            "scores": found["scores"].float(),
            "feats": found["feats"],
        }
        batch = {"batch_idx": image_K, "cls": labels_K, "bboxes": boxes_K4}
        terms = self._loss(exact, batch)[0].sum() / len(exact["boxes"])  # it multiplied by B
        return terms * self._scores.clamp(min=1), self._scores


def all_scores(scores: Tensor, mesh: Mesh) -> float:
    """Return the divisor of the loss: the target scores of all ranks, at least 1."""
    total = scores.detach().float().clone()
    if mesh.data.size > 1:
        dist.all_reduce(total)
    return max(1.0, float(total))
