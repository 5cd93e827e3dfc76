"""The detector over batches of squares of one size, as tiles of large photos are.

A tile needs no letterbox, all tiles of a batch go through the network at once, and batch norms are
folded into the convolutions before them. Convolutions may run in bfloat16; boxes are always decoded
in single precision, since bfloat16 cannot tell pixels beyond 256 apart. In single precision the
boxes are those of `Detector.detect`, to rounding.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.models.detector import Detector, DetectorSpec

Precision = Literal["fp32", "bf16"]

CELL = 8
"""Pixels: the side of a cell of the map of scores, the finest stride of YOLO's usual heads."""
_PATIENCE_S = 600.0
"""ultralytics leaves images out when choosing boxes takes long: on a busy machine, any."""

# B = batch, S = side of a tile, K = boxes of one tile, G = S / CELL, A = places of all strides


@dataclass(frozen=True)
class TileBoxes:
    """The detector's boxes in one tile, best first."""

    boxes_K4: NDArray[np.float32]
    """x1, y1, x2, y2 in pixels of the tile, inside it."""
    scores_K: NDArray[np.float32]
    labels_K: NDArray[np.int64]


class BatchDetector:
    """A detector made ready for many squares; its own network stays as it is."""

    def __init__(
        self, detector: Detector, device: str = "cpu", precision: Precision = "fp32"
    ) -> None:
        self.spec: DetectorSpec = detector.spec
        net: Any = detector.fused().net
        self._net = net.to(device)
        self._head = self._net.model[-1]
        self._strides = [int(stride) for stride in net.stride]
        self._device, self._bf16 = device, precision == "bf16"
        self._raw: dict[tuple[str, int], Tensor] = {}
        for name in ("cv2", "cv3"):  # ultralytics' names of the branches for boxes and classes
            for place, branch in enumerate(getattr(self._head, name)):
                branch.register_forward_hook(self._keep((name, place)))

    def _keep(self, key: tuple[str, int]) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> None:
            self._raw[key] = output

        return hook

    @torch.inference_mode()
    def detect(
        self, tiles_BSS3: NDArray[np.uint8], confidence: float | None = None
    ) -> tuple[list[TileBoxes], NDArray[np.float32]]:
        """Return the boxes of each tile and the maps of scores, B x G x G.

        A cell of a map has the highest score of any class at any scale, before boxes are chosen.
        """
        from ultralytics.utils.nms import non_max_suppression

        pixels = torch.from_numpy(tiles_BSS3).to(self._device).permute(0, 3, 1, 2)
        pixels = pixels.float().div_(255).contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device.partition(":")[0], torch.bfloat16, enabled=self._bf16):
            self._net(pixels)
        decoded, maps = self._decode(tiles_BSS3.shape[1])
        chosen = non_max_suppression(
            decoded,
            conf_thres=self.spec.confidence if confidence is None else confidence,
            iou_thres=self.spec.overlap,
            nc=len(self.spec.labels),
            max_time_img=_PATIENCE_S,
        )
        return [_boxes(rows, tiles_BSS3.shape[1]) for rows in chosen], maps

    def _decode(self, side: int) -> tuple[Tensor, NDArray[np.float32]]:
        """Return centre, size and scores, B x (4 + classes) x A, and the maps."""
        parts, cells = [], -(-side // CELL)
        maps_BGG = torch.zeros(1, cells, cells)
        for place, stride in enumerate(self._strides):
            box_B4RHW = self._raw["cv2", place].float()
            scores_BCHW = self._raw["cv3", place].float().sigmoid()
            batch, _, height, width = box_B4RHW.shape
            bins = torch.arange(box_B4RHW.shape[1] // 4, device=box_B4RHW.device).float()
            # A distance is the mean of a distribution (Li et al. 2020, arXiv 2006.04388).
            sides = box_B4RHW.view(batch, 4, len(bins), height, width)
            if len(bins) > 1:  # else the network gives the distance itself
                sides = (sides.softmax(2) * bins[:, None, None]).sum(2, keepdim=True)
            left, top, right, bottom = sides[:, :, 0].unbind(1)
            x = (torch.arange(width, device=bins.device) + 0.5).expand(height, width)
            y = (torch.arange(height, device=bins.device) + 0.5)[:, None].expand(height, width)
            corners = (x + (right - left) / 2, y + (bottom - top) / 2, left + right, top + bottom)
            box_B4HW = stride * torch.stack(corners, 1)
            parts.append(torch.cat([box_B4HW, scores_BCHW], 1).flatten(2))
            maps_BGG = torch.maximum(maps_BGG, _on_cells(scores_BCHW.amax(1), cells))
        self._raw.clear()
        return torch.cat(parts, 2), maps_BGG.numpy()


def _on_cells(scores_BHW: Tensor, cells: int) -> Tensor:
    """Bring the scores of one stride to the cells of the map."""
    scores = scores_BHW[:, None]
    if scores.shape[-1] > cells:
        scores = torch.nn.functional.adaptive_max_pool2d(scores, cells)
    elif scores.shape[-1] < cells:
        scores = torch.nn.functional.interpolate(scores, size=(cells, cells))
    return scores[:, 0].cpu()


def _boxes(rows: Tensor, side: int) -> TileBoxes:
    table = rows.cpu().numpy()
    boxes_K4 = table[:, :4].clip(0, side)
    whole = (boxes_K4[:, 0] < boxes_K4[:, 2]) & (boxes_K4[:, 1] < boxes_K4[:, 3])
    return TileBoxes(boxes_K4[whole], table[whole, 4], table[whole, 5].astype(np.int64))
