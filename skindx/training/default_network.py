"""The network of a training without a config: one whose pretrained weights are on this machine.

Nothing is fetched. Weights are looked for in the folder that SKINDX_WEIGHTS names, and among those
that an earlier training with `pretrained: true` has fetched.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import cache_folder
from skindx.core.startup import light_imports
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.classifier.pretrained import kept_weights
from skindx.training.config.run import MemberSettings, TrainSettings

VARIABLE = "SKINDX_WEIGHTS"

DEFAULT_NETWORKS = (
    "mobilenetv2_100",
    "tf_efficientnet_lite0",
    "resnet50",
    "efficientnet_b0",
    "resnet18",
)
"""Of timm, the first one with weights at hand is taken: small ones that train on a CPU lead."""

_ENDINGS = (".safetensors", ".fp16.safetensors", ".pth", ".pt", ".bin")


def with_default_network(settings: TrainSettings, *, random_weights: bool) -> TrainSettings:
    """Return settings that name no member with a network whose weights are at hand.

    With `random_weights` they stay as they are: a ResNet-18 that starts from nothing. Raises
    UserError where no weights are at hand.
    """
    if random_weights or not names_no_network(settings):
        return settings
    for name, file in _at_hand():
        member = _member(name, file)
        return settings.model_copy(update={"members": (member,)})
    folder = os.environ.get(VARIABLE)
    raise UserError(
        "a training without --config starts from pretrained weights, and none are at hand: "
        f"{', '.join(DEFAULT_NETWORKS)} are neither in {cache_folder() / 'weights'} nor in "
        f"{VARIABLE} ({folder or 'not set'}). Let {VARIABLE} name a folder with "
        f"{DEFAULT_NETWORKS[0]}.safetensors, give --config or --weights, or give --random-weights "
        "for a ResNet-18 that learns from these images alone."
    )


def names_no_network(settings: TrainSettings) -> bool:
    """Tell whether the members are those that stand in no config, without weights."""
    return bool(settings.members == TrainSettings.model_fields["members"].default)


def _at_hand() -> Iterator[tuple[str, Path]]:
    folder = os.environ.get(VARIABLE)
    if folder and not Path(folder).is_dir():
        raise UserError(f"{VARIABLE}={folder} is no folder; let it name one with weights.")
    for name in DEFAULT_NETWORKS:
        if folder:
            files = (Path(folder) / f"{name}{ending}" for ending in _ENDINGS)
            yield from ((name, file.resolve()) for file in files if file.is_file())
        if (kept := kept_weights(_settings(name))).is_file():
            yield name, kept


def _settings(name: str) -> MemberSettings:
    """Return a member with the statistics and the side that its weights were trained with."""
    with light_imports():
        import timm

    known = timm.get_pretrained_cfg(name)
    assert known is not None
    preprocess = Preprocess(size=known.input_size[-1], mean=known.mean, std=known.std)
    return MemberSettings(name=name.replace("_", "-"), model=name, preprocess=preprocess)


def _member(name: str, file: Path) -> MemberSettings:
    return _settings(name).model_copy(update={"weights": file})
