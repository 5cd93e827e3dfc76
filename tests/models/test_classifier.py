import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.classifier.preprocess import Preprocess

SMALL = ClassifierSettings(model="test_resnet", preprocess=Preprocess(size=64))


def test_normalisation_is_the_first_step() -> None:
    classifier = build_classifier(SMALL, 3).eval()
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    mean, std = (torch.tensor(values) for values in (SMALL.preprocess.mean, SMALL.preprocess.std))
    by_hand = ((images / 255 - mean) / std).permute(0, 3, 1, 2)
    torch.testing.assert_close(classifier(images), classifier.net(by_hand), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_of_another_head_are_taken_but_for_the_head(tmp_path: Path, suffix: str) -> None:
    donor = build_classifier(SMALL, 1000)
    file = tmp_path / f"weights{suffix}"
    state = donor.net.state_dict()
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    classifier = build_classifier(SMALL, 3)
    assert load_weights(classifier, file) == ["fc.weight", "fc.bias"]
    name = next(iter(state))
    torch.testing.assert_close(classifier.net.state_dict()[name], state[name])


class _Program:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("pickled programs must never run",))


@pytest.mark.parametrize("kind", ["absent", "text", "program", "other model"])
def test_bad_weights_are_one_sentence(tmp_path: Path, kind: str, capsys) -> None:
    file = tmp_path / "weights.pth"
    if kind == "text":
        file.write_text("no tensors")
    elif kind == "program":
        torch.save({"fc.weight": _Program()}, file)
    elif kind == "other model":
        torch.save({"stem.weight": torch.zeros(3)}, file)
    with pytest.raises(UserError, match=r"weights\.pth"):
        load_weights(build_classifier(SMALL, 3), file)
    assert "never run" not in capsys.readouterr().out


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no model 'resnet181'.* known name, such as: resnet18"):
        build_classifier(ClassifierSettings(model="resnet181"), 3)


def test_model_args_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="model_args do not fit the model 'test_resnet'"):
        build_classifier(ClassifierSettings(model="test_resnet", model_args={"patch_size": 8}), 3)


@pytest.mark.parametrize("model", ["mobilenetv2_100", "resnet10t", "regnetx_002"])
def test_the_first_guess_is_nearly_even(model: str) -> None:
    torch.manual_seed(0)
    classifier = build_classifier(ClassifierSettings(model=model), 10).train()
    images = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8)
    loss = torch.nn.functional.cross_entropy(classifier(images), torch.arange(8))
    assert abs(loss.item() - math.log(10)) < 0.3
