"""The first answer before a training: measured once, on images that chose nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tower_folders import timm_folder

from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.suggest import SHARES, Split, probe, sentences, suggest
from skindx.training.tasks import heads_job

CLASSES = 3


def _made_up(count: int, distance: float, seed: int, dimensions: int = 10) -> Split:
    rng = np.random.default_rng(seed)
    labels_N = np.arange(count) % CLASSES
    centres = np.random.default_rng(0).normal(0, distance, (CLASSES, dimensions))
    features = centres[labels_N] + rng.normal(0, 1, (count, dimensions))
    return Split(
        features, labels_N, np.array([f"g{seed}-{n // 2 * 2 + labels_N[n]}" for n in range(count)])
    )


def test_classes_that_are_apart_and_classes_that_are_not() -> None:
    apart = probe(_made_up(120, 3, 1), _made_up(90, 3, 2), CLASSES)
    assert apart.linear.value > 0.95
    assert apart.neighbours.value > 0.95
    assert apart.linear.low <= apart.linear.value <= apart.linear.high
    assert [point.share for point in apart.curve] == list(SHARES)
    assert apart.curve[-1].balanced_accuracy == pytest.approx(apart.linear.value)
    alike = probe(_made_up(120, 0, 5), _made_up(90, 0, 6), CLASSES)
    assert alike.linear.low < 1 / 3 < alike.linear.high
    assert alike.doubling.low <= 0 <= alike.doubling.high
    assert "does not show that more labels" in sentences(alike)[1]


def test_more_labels_help_where_there_are_few_for_many_features() -> None:
    answer = probe(_made_up(60, 0.6, 1, 40), _made_up(300, 0.6, 2, 40), CLASSES)
    first, *_, last = answer.curve
    assert last.balanced_accuracy > first.balanced_accuracy
    assert answer.fits_training > answer.linear.value


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("towers") / "tower"
    timm_folder(folder)
    return folder


def _settings(tower: Path, **more: Any) -> TrainSettings:
    member = {"name": "a", "model": f"local-dir:{tower}", "preprocess": {"size": 64}, **more}
    return TrainSettings.parse({"members": [member], "engine": {"accelerator": "cpu"}})


def test_an_answer_for_a_dataset(
    small_dataset: Path, tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (own,) = suggest(small_dataset, _settings(tower, pretrained=True), tmp_path)
    assert own.probe.linear.value > 0.5
    written = json.loads((tmp_path / "suggest.json").read_text())["trunks"][0]
    assert written["balanced_accuracy"]["linear"][0] == own.probe.linear.value
    assert [point["share"] for point in written["curve"]] == list(SHARES)
    assert written["model"] == "tower"
    monkeypatch.setattr(
        heads_job.FeatureFiles, "_compute", lambda *given: pytest.fail("computed again")
    )
    (again,) = suggest(small_dataset, _settings(tower, pretrained=True), None)
    assert again.probe == own.probe


def test_a_cache_that_is_not_what_its_name_says(
    small_dataset: Path, tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = _settings(tower, pretrained=True)
    suggest(small_dataset, settings, None)
    for file in (small_dataset / "cache").glob("features-*.f16"):
        content = bytearray(file.read_bytes())
        content[:4096] = content[:4096].replace(b'"view": 0', b'"view": 7')
        file.write_bytes(content)
    with pytest.raises(UserError, match="features of other weights"):
        suggest(small_dataset, settings, None)
    for file in (small_dataset / "cache").glob("features-*.f16"):
        file.write_bytes(file.read_bytes()[:-2])  # cut off: computed again
    assert suggest(small_dataset, settings, None)


def test_without_a_trunk(small_dataset: Path, tower: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trunk is available"):
        suggest(small_dataset, _settings(tower), None)


def test_train_suggests_and_else_needs_a_folder(
    small_dataset: Path, tower: Path, tmp_path: Path, skindx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "my.yaml"
    _settings(tower, pretrained=True).save(config)
    code, said, _ = skindx("train", small_dataset, "--config", config, "--suggest")
    assert code == 0
    assert "A linear probe reaches" in said
    assert "100%" in said
    code, _, error = skindx("train", small_dataset, "--config", config)
    assert code == 2
    assert "--out is missing" in error
