"""The lesion detector: ultralytics YOLO, rebuilt from YAML and safetensors, never a pickle.

A network is built from a checked configuration and is never larger than its weights; how many
lesions of each size it detects stays with its bundle.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.machine import go_offline, how_to_install, missing_modules
from skindx.core.settings_base import Settings
from skindx.core.startup import light_imports
from skindx.core.state_checks import UnfitStateError, check_finite
from skindx.core.untrusted import read_plain_yaml
from skindx.data.box import Box, match
from skindx.metrics import Interval, proportion_interval
from skindx.models.bounded_files import AGAIN, load_tensors, save_tensors
from skindx.models.classifier.network_setup import shapes_only
from skindx.models.network_limits import DetectorConfig, refuse_work

if TYPE_CHECKING:
    from torch import Tensor, nn


Shapes = Mapping[str, tuple[int, ...]]


def parse_config(raw: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the model dictionary of a model.yaml. Raises UserError for what it may not say."""
    return DetectorConfig.parse(raw, origin, expand=False).plain()


def build_detection_model(
    config: dict[str, Any], labels: int, origin: str, shapes: Shapes | None = None
) -> "nn.Module":
    """Create ultralytics' DetectionModel with random weights.

    `config` comes from `parse_config`; `shapes` are those of the weights that the network is for.
    Raises UserError for layers that do not fit each other or the weights, or take too much work.
    """
    go_offline()
    with light_imports():
        from ultralytics.nn.modules import Conv
        from ultralytics.nn.tasks import DetectionModel

    activation = Conv.default_act
    try:
        _refuse_large(config, labels, origin, shapes)
        net: nn.Module = DetectionModel(deepcopy(config), nc=labels, verbose=False)
    except UserError:
        raise
    except Exception as error:  # whatever a layer raises for arguments that do not fit it
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"{origin} has layers that do not fit each other ({reason}); correct this file, or "
            "use a model such as yolov8n.yaml."
        ) from None
    finally:
        Conv.default_act = activation  # ultralytics leaves it changed where building fails
    return net


def _refuse_large(config: dict[str, Any], labels: int, origin: str, shapes: Shapes | None) -> None:
    """Build without memory, and raise UserError for a network that is not as its weights are."""
    from ultralytics.nn.tasks import parse_model

    with shapes_only():
        layers, _ = parse_model(deepcopy({**config, "nc": labels}), ch=3, verbose=False)
    if shapes is not None:
        built = {
            f"model.{name}": tuple(tensor.shape) for name, tensor in layers.state_dict().items()
        }
        if built != shapes:
            raise UserError(
                f"{origin} and the weights in its folder are of different networks; {AGAIN}."
            )
    refuse_work([*config["backbone"], *config["head"]], layers, origin)


MODEL_YAML, MODEL_WEIGHTS = "model.yaml", "model.safetensors"

_LONGEST_YAML = 65_536

GREY = 114
"""What surrounds an image that is no square, in training as later."""

_PATIENCE_S = 60.0
"""ultralytics leaves images out when choosing boxes takes long: on a busy machine, any."""


class DetectorSpec(Settings):
    """Input and limits of a trained detector: square side in pixels, thresholds, class names."""

    size: int = Field(320, ge=64, le=1280, multiple_of=32)
    confidence: float = Field(0.25, ge=0, lt=1)
    """Boxes with a lower score are not shown; an evaluation asks for all boxes."""
    overlap: float = Field(0.6, gt=0, lt=1)
    """Overlap (IoU) above which only the better one of two boxes of a class stays."""
    labels: tuple[str, ...] = ("lesion",)


class NoUltralyticsError(UserError):
    """The extra that runs detectors is not installed: a diagnosis can do without boxes."""


@dataclass(frozen=True)
class Detector:
    """A YOLO network in evaluation mode."""

    net: "nn.Module"
    spec: DetectorSpec

    def fused(self) -> "Detector":
        """Return a copy for answers alone: norms are folded into the convolutions before them.

        Boxes and scores are the same up to rounding. Its parameters are no longer those of a file.
        """
        net: Any = deepcopy(self.net).eval()
        return replace(self, net=net.fuse(verbose=False).to(memory_format=torch.channels_last))

    def detect(
        self, images: Sequence[NDArray[np.uint8]], confidence: float | None = None
    ) -> list[tuple[Box, ...]]:
        """Return the boxes of each decoded image (H x W x 3 RGB uint8), best first."""
        floor = self.spec.confidence if confidence is None else confidence
        return [self._detect_one(image, floor) for image in images]

    @torch.inference_mode()
    def _detect_one(self, image_HW3: NDArray[np.uint8], floor: float) -> tuple[Box, ...]:
        from ultralytics.utils.nms import non_max_suppression

        square_SS3, scale, (left, top) = letterbox(image_HW3, self.spec.size)
        pixels_13SS = torch.from_numpy(square_SS3).permute(2, 0, 1)[None].float() / 255
        device = next(self.net.parameters()).device
        raw = self.net(pixels_13SS.to(device))
        chosen = non_max_suppression(
            raw,
            conf_thres=floor,
            iou_thres=self.spec.overlap,
            nc=len(self.spec.labels),
            max_time_img=_PATIENCE_S,
        )[0]
        height, width = image_HW3.shape[:2]
        boxes = []
        for x1, y1, x2, y2, score, label in chosen.cpu().tolist():
            left_x, right_x = ((min(max((x - left) / scale, 0), width)) for x in (x1, x2))
            top_y, bottom_y = ((min(max((y - top) / scale, 0), height)) for y in (y1, y2))
            if left_x < right_x and top_y < bottom_y:
                name = self.spec.labels[int(label)]
                boxes.append(Box(left_x, top_y, right_x, bottom_y, name, "detector", score))
        return tuple(boxes)


def letterbox(
    image_HW3: NDArray[np.uint8], size: int
) -> tuple[NDArray[np.uint8], float, tuple[int, int]]:
    """Fit an image into a grey square; return it, the scale, and the (left, top) margins."""
    import cv2

    height, width = image_HW3.shape[:2]
    scale = size / max(height, width)
    inner_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
    left, top = (size - inner_wh[0]) // 2, (size - inner_wh[1]) // 2
    square_SS3 = np.full((size, size, 3), GREY, dtype=np.uint8)
    square_SS3[top : top + inner_wh[1], left : left + inner_wh[0]] = cv2.resize(
        image_HW3, inner_wh, interpolation=cv2.INTER_LINEAR
    )
    return square_SS3, scale, (left, top)


def save_detector(folder: Path, config: dict[str, Any], state: "dict[str, Tensor]") -> None:
    """Write the network's YAML and tensors; `config` is ultralytics' model dictionary."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / MODEL_YAML, yaml.safe_dump(config, sort_keys=False))
    tensors = {name: tensor.float().contiguous().clone() for name, tensor in state.items()}
    save_tensors(tensors, folder / MODEL_WEIGHTS)


def load_detector(folder: Path, spec: DetectorSpec) -> Detector:
    """Rebuild a detector from `save_detector`'s files.

    Raises UserError when ultralytics is not installed, and for files that are not of one plain
    detector.
    """
    go_offline()
    config, state = read_detector(folder)
    if missing_modules("ultralytics"):
        raise NoUltralyticsError(
            "the bundle has a detector, but ultralytics is not installed; "
            f"run {how_to_install('detect')} (AGPL-3.0), or diagnose without boxes."
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    net = build_detection_model(config, len(spec.labels), str(folder / MODEL_YAML), shapes)
    net.load_state_dict(state)
    return Detector(net.eval(), spec)


def read_detector(folder: Path) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """Return the checked model dictionary and the tensors that `save_detector` wrote."""
    file = folder / MODEL_YAML
    config = parse_config(read_plain_yaml(file, _LONGEST_YAML), str(file))
    state = load_tensors(folder / MODEL_WEIGHTS)
    if any(tensor.dtype != torch.float32 for tensor in state.values()):
        raise UserError(f"{folder / MODEL_WEIGHTS} must have only float32 numbers; {AGAIN}.")
    try:
        check_finite(state, "it")
    except UnfitStateError as error:
        raise UserError(
            f"{folder / MODEL_WEIGHTS} has invalid values, because the training diverged "
            f"({error}); train the detector again with a lower detector.learning_rate."
        ) from None
    return config, state


EDGES_PX = (10.0, 20.0, 40.0, 80.0, 160.0)
"""Where bands of sizes begin; a scan leaves out what is smaller than the first."""
OVERLAP = 0.5
"""Least IoU with which a box detects a lesion, as in the usual recall."""


class SizeRecall(Settings):
    """How many of the lesions of one size were detected."""

    least_px: float = Field(ge=0)
    """Geometric mean of the box's sides, from here on and below `most_px`, in pixels of the square
    that the detector sees: a tile of a scan at full size shows lesions with as many."""
    most_px: float | None = Field(None, gt=0)
    """Upper limit of the size; None: any larger size."""
    found: int = Field(ge=0)
    lesions: int = Field(ge=0)

    @property
    def recall(self) -> Interval:
        """Return the share that was detected, with its exact 95 % interval; NaN without any."""
        return proportion_interval(self.found / self.lesions if self.lesions else 0, self.lesions)

    def holds(self, size_px: float) -> bool:
        """Tell whether a lesion of a size belongs here."""
        return self.least_px <= size_px < (math.inf if self.most_px is None else self.most_px)


class DetectorRecall(Settings):
    """What was measured of a detector, at the confidence with which the bundle uses it."""

    format: Literal[1] = 1
    images: int = Field(ge=0)
    confidence: float
    overlap: float = OVERLAP
    bands: tuple[SizeRecall, ...]


@dataclass(frozen=True)
class SizedTruth:
    """The lesions of one image, and the boxes that a detector gives on it."""

    truth: Sequence[Box]
    detected: Sequence[Box]
    px_a_pixel: float
    """Pixels of the detector's square in one of the image."""


def recall_by_size(images: Iterable[SizedTruth], confidence: float) -> DetectorRecall | None:
    """Count detected lesions by size; None without any lesion of a size that counts."""
    lesions, hits, count = [0] * len(EDGES_PX), [0] * len(EDGES_PX), 0
    for image in images:
        count += 1
        matched = {true for _, true, _ in match(image.detected, image.truth, OVERLAP)}
        for number, box in enumerate(image.truth):
            side = image.px_a_pixel * math.sqrt((box.x2 - box.x1) * (box.y2 - box.y1))
            band = sum(side >= edge for edge in EDGES_PX) - 1
            if band >= 0:
                lesions[band] += 1
                hits[band] += number in matched
    if not any(lesions):
        return None
    ends = (*EDGES_PX[1:], None)
    return DetectorRecall(
        images=count,
        confidence=confidence,
        bands=tuple(
            SizeRecall(least_px=least, most_px=most, found=hit, lesions=total)
            for least, most, hit, total in zip(EDGES_PX, ends, hits, lesions, strict=True)
        ),
    )


# The detector over batches of squares of one size, as tiles of large photos are.
#
# A tile needs no letterbox, all tiles of a batch go through the network at once, and batch norms
# are folded into the convolutions before them. Convolutions may run in bfloat16; boxes are always
# decoded in single precision, since bfloat16 cannot tell pixels beyond 256 apart. In single
# precision the boxes are those of `Detector.detect`, to rounding.

Precision = Literal["fp32", "bf16"]

CELL = 8
"""Pixels: the side of a cell of the map of scores, the finest stride of YOLO's usual heads."""
_TILES_PATIENCE_S = 600.0
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
            max_time_img=_TILES_PATIENCE_S,
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
