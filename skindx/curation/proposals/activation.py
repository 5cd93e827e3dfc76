"""Boxes from a classifier alone: where the evidence for its likeliest class lies.

Grad-CAM (Selvaraju et al. 2017, equations 1 and 2) on the last feature map, a threshold at a fifth
of its maximum, and the box around the largest component (Zhou et al. 2016, section 3.2). Such a
box is where the classifier found its evidence: coarse, one an image, and never "no lesion".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.models.ensemble import Member
from skindx.models.probability_scaling import apply_temperature

# H, W = height, width of the image; h, w = of the feature map; K = channels, C = classes

THRESHOLD = 0.2
"""Share of the map's maximum (Zhou et al. 2016)."""

_LEAST_SIDE = 32

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ActivationBoxes:
    """Proposes one box an image from a member's class activation; the score is its confidence."""

    member: Member

    def sees_places(self) -> bool:
        """True when the last features are a map K x h x w, as a convolutional network's are."""
        size = self.member.preprocess.size
        image = np.zeros((size, size, 3), dtype=np.uint8)
        try:
            with torch.no_grad():
                features = self._features(image)
        except (AttributeError, AssertionError, RuntimeError):
            return False
        return features.ndim == 4 and features.shape[1] > features.shape[2] == features.shape[3]

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[tuple[Box, ...]]:
        """Return one box of each decoded image; none without evidence for the class."""
        return [self._detect_one(image) for image in images]

    def _detect_one(self, image_HW3: NDArray[np.uint8]) -> tuple[Box, ...]:
        map_hw, confidence = self.class_activation(image_HW3)
        height, width = image_HW3.shape[:2]
        corners = activation_box(map_hw, width, height)
        return (Box(*corners, label="lesion", score=confidence),) if corners else ()

    def class_activation(self, image_HW3: NDArray[np.uint8]) -> tuple[Floats, float]:
        """Return Grad-CAM of the likeliest class, h x w, and that class's probability."""
        net = self.member.classifier.net
        with torch.enable_grad():
            features_1Khw = self._features(image_HW3).detach().requires_grad_()
            logits_1C = net.forward_head(features_1Khw)  # type: ignore[operator]
            gradient_1Khw = torch.autograd.grad(logits_1C.max(), features_1Khw)[0]
        weight_1K11 = gradient_1Khw.mean(dim=(2, 3), keepdim=True)
        map_hw = torch.relu((weight_1K11 * features_1Khw).sum(dim=1))[0]
        log_1C = torch.log_softmax(logits_1C.detach().double(), dim=1).cpu().numpy()
        confidence = float(apply_temperature(log_1C, self.member.temperature).max())
        return map_hw.detach().double().cpu().numpy(), confidence

    def _features(self, image_HW3: NDArray[np.uint8]) -> torch.Tensor:
        """Return features of the whole image, not of a central square: lesions lie anywhere."""
        classifier = self.member.classifier
        pixels_HW3 = whole(image_HW3, self.member.preprocess.margin_size)
        scale = classifier.scale
        pixels_13HW = torch.from_numpy(pixels_HW3).to(scale.device).permute(2, 0, 1)[None]
        net_input = pixels_13HW.to(scale.dtype) * scale + classifier.shift
        features: torch.Tensor = classifier.net.forward_features(net_input)  # type: ignore[operator]
        return features


def whole(image_HW3: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resize to the area of a square of `side`, keeping the aspect: no strip costs more."""
    height, width = image_HW3.shape[:2]
    stretch = (width / height) ** 0.5
    size_wh = (max(_LEAST_SIDE, round(side * stretch)), max(_LEAST_SIDE, round(side / stretch)))
    shrinks = size_wh[0] < width
    resized: NDArray[np.uint8] = cv2.resize(
        image_HW3, size_wh, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    return resized


def activation_box(
    map_hw: Floats, width: int, height: int
) -> tuple[float, float, float, float] | None:
    """Return the box in pixels around the largest component above the threshold, None of nothing.

    The map is enlarged before it is cut, since one of its cells may be a seventh of the image.
    """
    if not map_hw.max() > 0:
        return None
    side = 256
    fine = cv2.resize(map_hw.astype(np.float32), (side, side), interpolation=cv2.INTER_LINEAR)
    above = (fine >= THRESHOLD * fine.max()).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(above, connectivity=4)
    largest = stats[1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())]
    left, top, wide, high = (int(value) for value in largest[:4])
    x, y = width / side, height / side
    return left * x, top * y, (left + wide) * x, (top + high) * y
