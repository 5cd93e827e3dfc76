"""A timm classifier that takes uint8 images: built, given weights, tried before it is trained.

Normalisation is its first step on the device.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.core.settings_base import Settings
from skindx.core.startup import light_imports
from skindx.core.state_checks import UnfitStateError, check_finite, check_tensors
from skindx.models.bounded_files import load_tensors, read_state
from skindx.models.classifier.head_kinds import Head, KnnHead, LinearHead
from skindx.models.classifier.heads import AttentionPool, put_attention_pool, put_head
from skindx.models.classifier.network_setup import (
    NETWORKS,
    avoid_strided_pointwise_fault,
    is_known,
    shapes_only,
    sized_arguments,
)
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.network_limits import check_model_args

# B = batch, S = side, C = classes

_DO_NOT_FIT = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What timm's constructors raise for values that do not go together."""

_YOUNGER = ("attention_pool", "head", "tower", "trunk")

log = logging.getLogger(__name__)


class ClassifierSettings(Settings):
    """A timm model by name, with what its constructor needs beyond the number of classes."""

    model: str = Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?$", max_length=128)
    """A name of timm's own list: what begins with hf-hub: or local-dir: would be fetched or read
    from elsewhere."""
    model_args: dict[str, Any] = Field(default_factory=dict)
    preprocess: Preprocess = Preprocess()
    attention_pool: AttentionPool | None = None
    """CoCa's pooling in place of timm's own; set where a tower in open_clip's format has it."""
    head: Head = LinearHead()
    """Makes the logits of the pooled features: linear, mlp, knn or prototypes."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What younger settings leave at their default is not written: files and fingerprints of
        # networks that were there before stay as they were.
        parts: dict[str, Any] = write(self)
        fields = type(self).model_fields
        unused = {
            key for key in _YOUNGER if key in fields and getattr(self, key) == fields[key].default
        }
        return {key: value for key, value in parts.items() if key not in unused}

    @field_validator("model_args")
    @classmethod
    def _known_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        check_model_args(arguments)
        return arguments


class Classifier(nn.Module):
    """uint8 images B x S x S x 3 in, logits B x C out."""

    scale: Tensor
    shift: Tensor

    def __init__(self, net: nn.Module, preprocess: Preprocess) -> None:
        super().__init__()
        self.net = net
        # Three numbers each are computed on the CPU, whatever device the network is built on.
        mean, std = (torch.tensor(x, device="cpu") for x in (preprocess.mean, preprocess.std))
        # One multiply and one add: (x / 255 - mean) / std = x * scale + shift.
        scale, shift = (
            x.view(1, 3, 1, 1).to(torch.get_default_device())
            for x in (1 / (255 * std), -mean / std)
        )
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images_BSS3: Tensor) -> Tensor:
        """Return logits; the images may be of any dtype on the 0..255 scale."""
        logits_BC: Tensor = self.net(self._normalised(images_BSS3))
        return logits_BC

    def forward_features(self, images_BSS3: Tensor) -> Tensor:
        """Return the body's last map: B x D x h x w, or B x h x w x D or B x T x D by the model.

        `forward_head` makes the same logits of it as `forward`, to the bit.
        """
        map_: Tensor = self.net.forward_features(self._normalised(images_BSS3))  # type: ignore[operator]
        return map_

    def forward_head(self, map_: Tensor) -> Tensor:
        """Return logits B x C of the body's last map; cheap, and differentiable by the map."""
        logits_BC: Tensor = self.net.forward_head(map_)  # type: ignore[operator]
        return logits_BC

    def forward_pooled(self, map_: Tensor) -> Tensor:
        """Return what the last layer sees of the body's last map, B x D."""
        pooled_BD: Tensor = self.net.forward_head(map_, pre_logits=True)  # type: ignore[operator]
        return pooled_BD

    def forward_stages(self, images_BSS3: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return what the last layer sees, B x D, and the map of each stage, B x D x h x w."""
        last, maps = self.net.forward_intermediates(self._normalised(images_BSS3))  # type: ignore[operator]
        return self.forward_pooled(last), list(maps)

    def _normalised(self, images_BSS3: Tensor) -> Tensor:
        return images_BSS3.permute(0, 3, 1, 2).to(self.scale.dtype) * self.scale + self.shift


class ClassifierBody(nn.Module):
    """A classifier without its head, as a module that exporters and tracers follow."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, squares_BSS3: Tensor) -> Tensor:
        """Return the body's last map, as `Classifier.forward_features`."""
        return self.classifier.forward_features(squares_BSS3)


def build_classifier(settings: ClassifierSettings, classes: int) -> Classifier:
    """Create the model with random weights. Raises UserError for a name timm does not know."""
    go_offline()
    import difflib

    with light_imports():
        import timm

    if not is_known(settings.model):
        near = difflib.get_close_matches(settings.model, timm.list_models(), n=3)
        raise UserError(
            f"timm has no model {settings.model!r}, and no installed package adds it (entry point "
            f"{NETWORKS}); set `model` to a known name, such as: {', '.join(near) or 'none'}."
        )
    try:
        arguments = sized_arguments(settings.model, settings.model_args, settings.preprocess.size)
        net = timm.create_model(settings.model, pretrained=False, num_classes=classes, **arguments)
        if settings.attention_pool:
            put_attention_pool(net, settings.attention_pool, classes)
        if not isinstance(settings.head, LinearHead):
            put_head(net, settings.head, classes)
    except _DO_NOT_FIT as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"model_args do not fit the model {settings.model!r} ({reason.rstrip('.')}); correct "
            "model_args."
        ) from None
    _calm_head(net)
    avoid_strided_pointwise_fault(net)
    return Classifier(net, settings.preprocess)


def load_classifier(
    settings: ClassifierSettings,
    classes: int,
    file: Path,
    trunk: Mapping[str, Tensor] | None = None,
) -> Classifier:
    """Rebuild a classifier from a file of its own weights, beside those of a `trunk` if it has one.

    Nothing of its size is built before the files are found to hold exactly its tensors: a network
    is never larger than its weights. Raises UserError.
    """
    # The file's own pages, mapped: several processes that serve it share one copy.
    state = {**(trunk or {}), **load_tensors(file)}
    check_weights(settings, classes, state, file, "copy or pack the bundle again")
    classifier = build_classifier(settings, classes)
    expected = classifier.net.state_dict()
    state = {name: tensor.to(expected[name].dtype) for name, tensor in state.items()}
    classifier.net.load_state_dict(state, assign=True)
    return classifier


def check_weights(
    settings: ClassifierSettings, classes: int, state: dict[str, Tensor], file: Path, mend: str
) -> None:
    """Raise UserError, which names the `file` and says how to `mend` it, for another network's.

    The network of the settings is built without memory.
    """
    with shapes_only():
        net = build_classifier(settings, classes).net
    try:
        check_tensors(state, net.state_dict(), "it")
        check_finite(state, "it")
    except UnfitStateError as error:
        raise UserError(
            f"{file} does not have the tensors of the model {settings.model!r} with {classes} "
            f"classes ({error}); {mend}."
        ) from None


def fitted_network(settings: ClassifierSettings, state: Mapping[str, Tensor]) -> ClassifierSettings:
    """Return the settings of a network whose head has as many rows as its weights."""
    if not isinstance(settings.head, KnnHead):
        return settings
    rows = next((len(tensor) for name, tensor in state.items() if name.endswith(".bank_ND")), 0)
    return settings.model_copy(update={"head": settings.head.model_copy(update={"rows": rows})})


def _calm_head(net: nn.Module) -> None:
    """Let the model start from a nearly even guess.

    Some of timm's models draw their head for a thousand classes: with ten, the first logits are
    so large that the loss starts at three times ln C, and the first steps spoil given weights.
    """
    head = net.get_classifier()  # type: ignore[operator]
    if isinstance(head, nn.Linear):
        nn.init.normal_(head.weight, std=0.01)
        if head.bias is not None:
            nn.init.zeros_(head.bias)


def _fits(tensor: Tensor, expected: Tensor) -> bool:
    """True for a tensor that can be copied into `own` as it is, but for its precision."""
    real = tensor.is_floating_point() and expected.is_floating_point()
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return tensor.shape == expected.shape and plain and (real or tensor.dtype == expected.dtype)


def load_weights(classifier: Classifier, path: Path) -> list[str]:
    """Load weights that `read_state` can read; return the names left untouched.

    Tensors whose shape differs (the head of a model with other classes) keep their random values
    and are logged. Raises UserError when too little fits, and for numbers that are not finite.
    """
    state = read_state(path)
    expected = classifier.net.state_dict()
    fitting = {
        name: tensor
        for name, tensor in state.items()
        if name in expected and _fits(tensor, expected[name])
    }
    if len(fitting) < len(expected) / 2:
        raise UserError(
            f"the weights {path} fit only {len(fitting)} of the model's {len(expected)} tensors; "
            "give weights of the same model."
        )
    try:
        check_finite(fitting, "it")
    except UnfitStateError as error:
        raise UserError(
            f"the weights {path} have invalid values, because their training diverged ({error}); "
            "give weights from an earlier epoch or another training."
        ) from None
    classifier.net.load_state_dict(fitting, strict=False)
    untouched = [name for name in expected if name not in fitting]
    if untouched:
        log.info("%s: %s start from random values", path.name, ", ".join(untouched))
    return untouched


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
            f"cannot be trained on images of {side} x {side} pixels ({reason})"
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
                raise TrialError(
                    "makes several last feature maps, but a diagnosis needs exactly one"
                )
            logits_BC, pooled_BD = classifier.forward_head(map_), classifier.forward_pooled(map_)
        except TrialError:
            raise
        except Exception as error:
            raise TrialError(
                "does not compute its answer from its last feature map, which a diagnosis needs "
                f"({_reason(error)})"
            ) from None
    shapes = [tuple(logits_BC.shape), tuple(pooled_BD.shape[:1])]
    if shapes != [(2, classes), (2,)] or pooled_BD.ndim != 2:
        raise TrialError(
            "gives another answer from its last feature map than from the image, so it cannot be "
            "used for a diagnosis"
        )
    return map_


def _images(side: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8, generator=generator)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
