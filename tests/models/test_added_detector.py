"""A detector of another distribution: fitted, packed, served, and refused where it is missing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Skindx
from PIL import Image
from some_features import features, learned
from tiny_bundle import pack_whole

from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest, write_manifest
from skindx.models.ood.ood_check import fit_check
from skindx.models.ood.ood_detectors import DEFAULT, DETECTORS, Mahalanobis, MahalanobisSettings
from skindx.models.ood.stored_check import OodCollector
from skindx.training.config.ensemble import EnsembleSettings
from skindx.training.config.run import TrainSettings

TOY = '''
"""A detector from outside: how bright an image is."""
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from skindx.models.ood.ood_features import OodDetector, OodDetectorSettings

@dataclass(frozen=True)
class Brightness(OodDetector):
    needs: ClassVar = frozenset({"image"})
    mean: float
    spread: float

    @classmethod
    def fit(cls, settings, learned):
        bright_N = learned.features.image_NF[:, 0].astype(np.float64)
        return cls(float(bright_N.mean()), float(bright_N.std()) + settings.floor)

    def scores(self, features):
        return np.abs(features.image_NF[:, 0] - self.mean) / self.spread

class BrightnessSettings(OodDetectorSettings):
    """Distance of an image's brightness to that of the training images."""
    kind: Literal["brightness"] = "brightness"
    floor: float = Field(0.01, gt=0)
    detector: ClassVar = Brightness
'''
OOD = [{"kind": "mahalanobis"}, {"kind": "brightness", "floor": 0.02}]
PACKS = """
import json, sys
from pathlib import Path
import numpy as np
from skindx.training.config.run import TrainSettings
settings = TrainSettings.parse({"ensemble": {"ood": json.loads(sys.argv[2])}})
from tiny_bundle import pack_whole
pack_whole(Path(sys.argv[1]), ood=settings.ensemble.ood)
from skindx.diagnosis.predictor import Predictor
predictor = Predictor.load(Path(sys.argv[1]))
photo = np.random.default_rng(5).integers(0, 256, (70, 90, 3), dtype=np.uint8)
from skindx.models.ood.ood_check import p_values_of
ensemble = predictor.ensemble
def p_value(photo):
    output = ensemble.predict_with_features([photo])
    return float(p_values_of(predictor.ood, ensemble, [photo], output)[0])
print(json.dumps([p_value(photo), p_value(np.zeros_like(photo))]))
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the toy's distribution into a folder; return the environment that has it."""
    folder = tmp_path_factory.mktemp("outside")
    info = folder / "toy_ood-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-ood\nVersion: 1.0\n")
    points = "[skindx.ood_detectors]\nbrightness = toy_ood:BrightnessSettings\n"
    (info / "entry_points.txt").write_text(points)
    (folder / "toy_ood.py").write_text(TOY)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def test_it_is_packed_and_served_where_it_is_installed_and_refused_elsewhere(
    outside: dict[str, str], skindx: Skindx, tmp_path: Path
) -> None:
    bundle, photo = tmp_path / "bundle", tmp_path / "photo.png"
    command = [sys.executable, "-c", PACKS, str(bundle), json.dumps(OOD)]
    done = subprocess.run(command, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    usual, dark = json.loads(done.stdout.splitlines()[-1])
    assert dark == pytest.approx(1 / 41)  # darker than each of 40 calibration images
    assert usual > dark
    index = json.loads((bundle / "bundle.json").read_text())
    assert index["ood"]["detectors"] == OOD
    Image.fromarray(np.zeros((70, 90, 3), np.uint8)).save(photo)
    code, printed, err = skindx("diagnose", bundle, photo)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert "no OOD detector 'brightness' here" in err
    assert "install the package that has it" in err


@pytest.mark.parametrize("written", [True, False])
def test_a_training_with_one_that_is_missing_is_refused_and_writes_nothing(
    skindx: Skindx, small_dataset: Path, tmp_path: Path, written: bool
) -> None:
    run, file = tmp_path / "run", tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump({"ensemble": {"ood": OOD}}))
    given = ["--config", file] if written else ["--set", "ensemble.ood=[{kind: brightness}]"]
    code, printed, err = skindx("train", small_dataset, "--out", run, *given)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert "no OOD detector 'brightness' here; choose another" in err
    assert not run.exists()


def test_the_usual_detectors_are_not_written_and_need_not_be_given() -> None:
    assert EnsembleSettings().ood == DEFAULT
    usual = [one.model_dump() for one in DEFAULT]
    for settings in (TrainSettings(), TrainSettings.parse({"ensemble": {"ood": usual}})):
        assert "ood" not in settings.model_dump(mode="json")["ensemble"]
    one = TrainSettings.parse({"ensemble": {"ood": [{"kind": "mahalanobis"}]}})
    assert one.model_dump(mode="json")["ensemble"]["ood"] == [{"kind": "mahalanobis"}]
    with pytest.raises(UserError, match=r"ensemble\.ood"):
        TrainSettings.parse({"ensemble": {"ood": []}})


def test_a_check_is_fitted_with_the_detectors_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = pack_whole(tmp_path / "bundle").ood_images()
    monkeypatch.setattr(OodCollector, "images", lambda _: images)
    nothing: Any = None
    part = OodCollector(nothing, (), [MahalanobisSettings()]).part()
    assert part is not None
    assert part.spec.detectors == (MahalanobisSettings(),)
    usual = OodCollector(nothing, ()).part()
    assert usual is not None
    assert usual.spec.detectors == DEFAULT


def _raises(*_: Any) -> Any:
    raise ZeroDivisionError("two\nlines")


@pytest.mark.parametrize(
    ("name", "wrong", "reported"),
    [
        ("fit", _raises, "ZeroDivisionError: two lines"),
        ("scores", lambda *_: np.zeros((3, 1)), r"\(3, 1\) scores of 50 images"),
        ("scores", lambda *_: np.full(50, np.nan), "not finite"),
        ("tensors", lambda _: {"means_CD": np.zeros(1)}, "KeyError: 'axes_AD'"),
    ],
)
def test_whatever_it_does_wrong_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any], reported: str
) -> None:
    monkeypatch.setitem(vars(DETECTORS), "added", {"mahalanobis": None})
    monkeypatch.setattr(Mahalanobis, name, wrong)
    with pytest.raises(UserError, match=reported) as refused:
        fit_check([MahalanobisSettings()], learned(), features(50, 1))
    assert "detector 'mahalanobis' cannot be fitted" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.long
@pytest.mark.distributed
def test_a_training_fits_it_and_a_diagnosis_asks_it(
    outside: dict[str, str], small_dataset: Path, tmp_path: Path
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(small_dataset, data)
    held = [
        replace(record, split="calibration") if record.split == "test" else record
        for record in read_manifest(data)
    ]
    write_manifest(data, held)  # 24: with fewer than 19 there is no check
    settings = {
        "engine": {"accelerator": "cpu", "ranks": 1},
        "recipe": {"epochs": 1, "batch": 18},
        "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}],
        "ensemble": {"ood": OOD},
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))

    def skindx(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "skindx", *map(str, words)]
        return subprocess.run(command, env=outside, capture_output=True, text=True, check=False)

    done = skindx("train", data, "--config", tmp_path / "train.yaml", "--out", run)
    assert done.returncode == 0, done.stderr
    index = json.loads((run / "bundle" / "bundle.json").read_text())
    assert index["ood"]["detectors"] == OOD
    assert index["ood"]["images"] == 24
    assert yaml.safe_load((run / "train.yaml").read_text())["ensemble"]["ood"] == OOD
    assert "brightness" in (run / "bundle" / "MODEL_CARD.md").read_text()
    again = skindx("train", data, "--config", tmp_path / "train.yaml", "--out", run)
    assert "is packed from these members already" in again.stdout
    answer = skindx("diagnose", run / "bundle", data / held[0].path, "--json")
    assert answer.returncode == 0, answer.stderr
    assert 1 / 25 <= json.loads(answer.stdout)["familiarity"] <= 1
