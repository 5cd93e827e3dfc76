"""Check on random images that a network can be trained and explained, before it is trained.

B = batch, S = side, C = classes, D = dimensions
"""

import torch
from torch import Tensor

from skindx.models.classifier.classifier import Classifier, ClassifierSettings, build_classifier


class TrialError(Exception):
    """The operation that a network fails at, in words that follow its name."""


def try_network(settings: ClassifierSettings, classes: int, smaller: int | None = None) -> None:
    """Build a network with random weights, take a gradient, and read the last map as a bundle does.

    `smaller` is another side that it is trained on. Raises TrialError for what it cannot do.
    """
    side = settings.preprocess.size
    try:
        classifier = build_classifier(settings, classes)
        for size in {smaller or side, side}:
            take_gradient(classifier, size, classes)
    except TrialError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise TrialError(
            f"cannot be trained on images of {side} x {side} pixels: {reason}"
        ) from None
    check_last_map(classifier, side, classes)


def take_gradient(classifier: Classifier, side: int, classes: int) -> None:
    """Train on two images without taking a step. Raises what the network raises, TrialError."""
    logits_BC = classifier.train()(_images(side))
    if tuple(logits_BC.shape) != (2, classes):
        raise TrialError(
            f"answers with {tuple(logits_BC.shape)} for 2 images and {classes} classes"
        )
    labels_B = torch.arange(2) % classes
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits_BC, labels_B))
    classifier.zero_grad()


def check_last_map(classifier: Classifier, side: int, classes: int) -> Tensor:
    """Return the last map of two images, of which head and embedding were made.

    Raises TrialError for a network without such a map: a diagnosis needs it.
    """
    classifier.eval()
    with torch.inference_mode():
        try:
            map_ = classifier.forward_features(_images(side))
            if not isinstance(map_, Tensor):
                raise TrialError("makes several last maps, and a diagnosis needs one")
            logits_BC, pooled_BD = classifier.forward_head(map_), classifier.forward_pooled(map_)
        except TrialError:
            raise
        except Exception as error:
            raise TrialError(
                f"does not answer from its last map, which a diagnosis needs: {_reason(error)}"
            ) from None
    shapes = [tuple(logits_BC.shape), tuple(pooled_BD.shape[:1])]
    if shapes != [(2, classes), (2,)] or pooled_BD.ndim != 2:
        raise TrialError("does not answer from its last map as it does from images")
    return map_


def _images(side: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8, generator=generator)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
