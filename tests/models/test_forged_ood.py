"""An out-of-distribution check that somebody changed, with the right hash."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from forged_bundle import forge
from safetensors.torch import load_file, save

from skindx.core.errors import UserError
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.ood.stored_check import CHECK, FEATURES

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def networks_once(whole_bundle: Path) -> Iterator[None]:
    """Build the networks of all changed copies once: only their checks differ."""
    ensemble = open_bundle(whole_bundle).ensemble()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bundle, "ensemble", lambda *_: ensemble)
        yield


def _refused(bundle: Path) -> bool:
    try:
        Predictor.load(bundle)
    except UserError as error:
        return "out-of-distribution" in str(error) or CHECK in str(error)
    return False


@pytest.mark.usefixtures("networks_once")
@pytest.mark.parametrize(
    "change",
    [
        lambda each: each * torch.nan if each.is_floating_point() else each,
        lambda each: each[..., :1] if each.ndim else each,
        lambda each: each.flatten(),
        lambda each: each[:0] if each.ndim else each,
        lambda each: each.to(torch.int8),
        lambda each: each.to(torch.bfloat16),
    ],
)
def test_a_changed_check_is_one_sentence(
    whole_bundle: Path, tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Each tensor in turn: a sentence, or a check that still works."""
    tensors = load_file(whole_bundle / CHECK)
    refused = 0
    for name in tensors:
        bundle = Path(shutil.copytree(whole_bundle, tmp_path / name))
        forge(bundle, CHECK, save({**tensors, name: change(tensors[name]).contiguous()}))
        refused += _refused(bundle)
    assert refused


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "image"},
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "logits.0"},
        lambda tensors: {**tensors, "another": torch.zeros(3)},
        lambda tensors: {name: tensor[1:] for name, tensor in tensors.items()},
        lambda tensors: {name: tensor.flatten() for name, tensor in tensors.items()},
        lambda tensors: {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()},
        lambda tensors: {name: tensor.to(torch.int8) for name, tensor in tensors.items()},
        lambda tensors: {name: tensor * torch.nan for name, tensor in tensors.items()},
    ],
)
def test_changed_features_are_one_sentence(
    whole_bundle: Path,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
) -> None:
    """They are read when images are removed from the bundle."""
    bundle = Path(shutil.copytree(whole_bundle, tmp_path / "bundle"))
    assert open_bundle(bundle).ood_images() is not None
    tensors = change(load_file(bundle / FEATURES))
    forge(bundle, FEATURES, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    with pytest.raises(UserError, match=r"copy the whole bundle again|copy it again"):
        open_bundle(bundle).ood_images()


def test_garbage_and_a_missing_table_are_one_sentence(whole_bundle: Path, tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"\xff" * 8 + b"{}", b"garbage" * 9)):
        bundle = Path(shutil.copytree(whole_bundle, tmp_path / str(number)))
        forge(bundle, CHECK, content)
        with pytest.raises(UserError, match="safetensors"):
            Predictor.load(bundle)
