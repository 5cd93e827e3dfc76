"""The recipe's features under the trainer's own loop, on an engine of plain PyTorch."""

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from plain_engine import Alone, PlainEngine
from ranks import run_ranks
from safetensors.torch import save_file

from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest, split_of
from skindx.models.classifier.classifier import load_classifier
from skindx.training import state
from skindx.training.checkpoint.finished import FinishedMember
from skindx.training.config.run import TrainSettings
from skindx.training.loop import fit, train
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx.training.position import Position
from skindx.training.state import Training
from skindx.training.tasks.classifier_job import setup_member
from skindx.training.tasks.open_sets import TrainingData

CLASSES = ("Disc", "Stripes", "Plain")
SMALL = {"name": "a", "model": "test_convnext", "preprocess": {"size": 64}}
FAST = {"epochs": 4, "batch": 15, "learning_rate": 0.003, "label_smoothing": 0.0}
MIX = {"mixup": 0.4, "cutmix": 1.0}


class Silent:
    def start(self, history: Any) -> None:
        pass

    def step(self, step: int, loss: float) -> None:
        pass

    def epoch(self, history: Any, line: str) -> None:
        pass

    def line(self, text: str) -> None:
        pass


def data_of(dataset: Path) -> TrainingData:
    records = read_manifest(dataset)
    return TrainingData(dataset, split_of(records, "train"), split_of(records, "val"), CLASSES)


def settings_of(member: dict[str, Any] = SMALL, **recipe: Any) -> TrainSettings:
    return TrainSettings.parse(
        {
            "members": [member],
            "recipe": {**FAST, **recipe},
            "engine": {"accelerator": "cpu"},
            "loader": {"threads": 1},
        }
    )


def begun(settings: TrainSettings, dataset: Path) -> Training[FinishedMember]:
    return setup_member(settings, settings.members[0], data_of(dataset), Alone(), print)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "Engine", PlainEngine)


LEARNER = {**SMALL, "model": "test_efficientnet"}
EASY = {
    "epochs": 3,
    "batch": 9,
    "learning_rate": 0.01,
    "warmup_epochs": 0.5,
    "augment": {"scale": [0.9, 1], "flip": False, "colour": 0},
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "focal": {"loss": {"kind": "focal"}, "class_weights": "effective"},
    "logit adjusted": {"loss": {"kind": "logit_adjusted"}},
    "mix and average": {"mix": {**MIX, "clean_epochs": 1}, "ema": {"decay": 0.9}},
    "layers, sides": {"layer_decay": 0.8, "resize": {"start": 32, "until": 0.5}},
    "pieces, steps": {"accumulate": 2, "schedule": {"kind": "steps", "epochs": [2]}},
    "augment": {"augment": {"scale": [0.9, 1], "blur": 0.3, "sharpen": 0.3, "holes": 0.5}},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05},
    "lars": {"optimizer": "lars", "learning_rate": 10, "weight_decay": 1e-4},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.03},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_the_loss_falls(small_dataset: Path, feature: str) -> None:
    settings = settings_of(LEARNER, **{**EASY, **FEATURES[feature]})
    _, history = train(begun(settings, small_dataset), Silent())
    losses = [row["loss"] for row in history]
    assert len(losses) == 3
    assert losses[-1] < 0.7 * losses[0], losses


EVERYTHING = {
    "epochs": 3,
    "mix": {**MIX, "clean_epochs": 1},
    "ema": {"decay": 0.9},
    "resize": {"start": 32, "until": 0.5},
    "accumulate": 2,
    "layer_decay": 0.8,
}
DROPPING = {**SMALL, "model_args": {"drop_rate": 0.2, "drop_path_rate": 0.2}}


def test_a_training_goes_on_from_anywhere_to_the_bit(small_dataset: Path) -> None:
    """What `Training` calls its state is all there is, dropout and mixing included."""
    settings = settings_of(DROPPING, **EVERYTHING)
    kept: list[tuple[Any, ...]] = []

    def keep(training: Training[FinishedMember]) -> None:
        assert training.average is not None
        engine = training.engine
        state = (
            engine.module.state_dict(),
            engine.optimizer.state_dict(),
            training.average.state_dict(),
            training.position,
        )
        kept.append(deepcopy(state))

    whole = begun(settings, small_dataset)
    finished = fit(whole, Silent(), keep)
    assert len(kept) == 3 * (4 + 1)  # 54 images in batches of 15 are 4 steps
    for weights, optimizer, average, position in (kept[5], kept[4], kept[-1]):
        again = begun(settings, small_dataset)
        assert again.average is not None
        again.engine.module.load_state_dict(weights)
        again.engine.optimizer.load_state_dict(optimizer)
        again.average.load_state_dict(average)
        resumed = dataclasses.replace(again, position=deepcopy(position))
        torch.rand(7)  # whatever was drawn in between
        found = fit(resumed, Silent())
        assert all(found.state[name].equal(value) for name, value in finished.state.items())
        assert (found.validation_NC == finished.validation_NC).all()
        losses = [[row["loss"] for row in trained.position.history] for trained in (whole, resumed)]
        assert losses[0] == losses[1]
    assert kept[4][-1] == dataclasses.replace(Position(1), history=kept[4][-1].history)


def _state(settings: TrainSettings, dataset: Path) -> dict[str, torch.Tensor]:
    training = begun(settings, dataset)
    return fit(training, Silent()).state


def test_pieces_add_up_to_the_big_batch(small_dataset: Path) -> None:
    one, four = (
        _state(settings_of(epochs=1, optimizer="sgd", accumulate=n, mix=MIX), small_dataset)
        for n in (1, 4)
    )
    for name, value in one.items():
        torch.testing.assert_close(four[name], value, rtol=1e-4, atol=1e-5)


def test_the_average_is_what_is_judged_and_kept(small_dataset: Path) -> None:
    training = begun(settings_of(epochs=1, ema={"decay": 0.5}), small_dataset)
    finished = fit(training, Silent())
    assert training.average is not None
    averaged, last = training.average.module, training.engine.module
    for name, value in finished.state.items():
        assert value.equal(averaged.state_dict()[f"net.{name}"])
    assert any(
        not value.equal(last.state_dict()[f"net.{name}"]) for name, value in finished.state.items()
    )


def test_given_weights_start_the_body(small_dataset: Path, tmp_path: Path) -> None:
    first = begun(settings_of({**SMALL, "seed": 5}), small_dataset)
    file = tmp_path / "given.pth"
    torch.save({"state_dict": first.evaluated().net.state_dict()}, file)
    settings = settings_of().starting_from(file)
    second = begun(settings, small_dataset)
    for name, value in first.evaluated().net.state_dict().items():
        assert second.evaluated().net.state_dict()[name].equal(value)
    own = tmp_path / "own.pth"
    named = settings_of({**SMALL, "weights": str(own)}).starting_from(file)
    assert named.members[0].weights == own


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_of_a_diverged_training_are_refused(
    small_dataset: Path, tmp_path: Path, value: float
) -> None:
    tensors = begun(settings_of(), small_dataset).evaluated().net.state_dict()
    name = next(iter(tensors))
    tensors = {**tensors, name: torch.full_like(tensors[name], value)}
    file = tmp_path / "bad.pth"
    torch.save(tensors, file)
    with pytest.raises(UserError, match=rf"diverged .it/{name} .*not finite"):
        begun(settings_of().starting_from(file), small_dataset)
    save_file(tensors, tmp_path / "bad.safetensors")
    with pytest.raises(UserError, match=f"it/{name} is damaged: some of its numbers"):
        load_classifier(settings_of().members[0].network(), 3, tmp_path / "bad.safetensors")


@pytest.mark.parametrize("recipe", [{}, {"optimizer": "sgd", "ema": {"decay": 0.5}}])
def test_a_training_that_diverges_ends_in_a_sentence(
    small_dataset: Path, recipe: dict[str, Any]
) -> None:
    settings = settings_of(
        {**SMALL, "model": "test_resnet"},
        **{"batch": 27, "learning_rate": 1e3, "warmup_epochs": 0, **recipe},
    )
    said = r"^a diverged: .* epoch \d, step \d+, at a learning rate of"
    with pytest.raises(UserError, match=said):
        fit(begun(settings, small_dataset), Silent())


RANKS = {"epochs": 1, "optimizer": "sgd", "mix": MIX, "ema": {"decay": 0.9}, "accumulate": 2}


def _train_on_ranks(dataset: Path) -> dict[str, np.ndarray]:
    settings = settings_of(**RANKS)
    dist.init_process_group("gloo")
    mesh = Mesh(ProcessGroup(dist.get_rank(), 2), torch.device("cpu"), settings.engine)
    state.Engine = PlainEngine
    member, data = settings.members[0], data_of(dataset)
    finished, _ = train(setup_member(settings, member, data, mesh, print), Silent())
    dist.destroy_process_group()
    return {name: value.numpy() for name, value in finished.state.items()}


@pytest.mark.distributed
def test_uneven_ranks_equal_one_with_everything_on(small_dataset: Path) -> None:
    """Steps of 13 and 14 images on two ranks: shares of 7 and 6 end inside a pair."""
    results = run_ranks(2, _train_on_ranks, small_dataset, timeout_s=270)
    alone = _state(settings_of(**RANKS), small_dataset)
    for result in results:
        for name, value in alone.items():
            found = torch.from_numpy(result[name])
            torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-4)
