import hashlib
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from installed_bundles import install
from site_score import score_build
from skin_photo import skin_photo

from skindx import demo
from skindx.core.errors import UserError
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.synthetic.site import make_site, serve_site
from skindx.demo import HERE, MARK, recipe, run_demo
from skindx.training.config.run import TrainSettings

ORIGIN = "http://127.0.0.1:4711"


def test_the_demo_is_impolite_to_its_own_origin_alone() -> None:
    settings = BuildSettings.parse(yaml.safe_load(recipe(ORIGIN, Path("boxes.json"), 0)))
    own = settings.fetch.policy(ORIGIN)
    assert (own.concurrency, own.delay_s) == (8, 0)
    others = ("http://127.0.0.1:4712", "http://localhost:4711", "https://127.0.0.1:4711")
    for other in (*others, "https://dermatlas.example:443"):
        policy = settings.fetch.policy(other)
        assert policy.concurrency == 1
        assert policy.delay_s >= 1
    assert settings.fetch.allow_private == ("127.0.0.1:4711",)


def test_the_demo_finds_what_was_planted(tmp_path: Path) -> None:
    truth = make_site(tmp_path / "atlas", per_class=8, seed=5)
    with serve_site(tmp_path / "atlas" / "site") as origin:
        raw = yaml.safe_load(recipe(origin, tmp_path / "atlas" / "annotations.json", 5))
        summary = build(BuildSettings.parse(raw), tmp_path / "data")
    issues = read_issues(tmp_path / "data")
    scores = {score.name: score for score in score_build(truth, issues, origin)}
    assert {name: (each.precision, each.recall) for name, each in scores.items()} == dict.fromkeys(
        scores, (1.0, 1.0)
    )
    assert scores["dead-link"].planted >= 6
    assert scores["near-duplicate"].planted > 0
    records = read_manifest(tmp_path / "data")
    assert len(records) == summary.kept == truth.distinct
    assert all(record.boxes for record in records)
    assert all(record.licence and record.creator for record in records)


def test_the_training_settings_are_sound() -> None:
    settings = TrainSettings.load(HERE / "train.yaml")
    assert len({member.model for member in settings.members}) == 2
    assert settings.engine.ranks == 2


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        run_demo(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert MARK.startswith(".")


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the commands that the demo shows; none is run, and nothing is painted."""
    said: list[tuple[str, ...]] = []
    image = SimpleNamespace(split="test", path="a.jpg", label="Nevus")
    monkeypatch.setattr(demo, "_verb", lambda *words: said.append(words))
    monkeypatch.setattr(demo, "make_site", lambda *_, **__: None)
    monkeypatch.setattr(demo, "serve_site", lambda _: nullcontext(ORIGIN))
    monkeypatch.setattr(demo, "read_manifest", lambda _: [image])
    return said


def test_the_demo_ends_with_a_real_photo_by_the_released_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verbs: list[tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "RELEASED", "toy")
    site, packed = tmp_path / "site", tmp_path / "packed"
    packed.mkdir()
    (packed / "bundle.json").write_text("{}")
    examples = install(site, packed).with_name("examples")
    examples.mkdir()
    photo = skin_photo()
    (examples / "one.jpg").write_bytes(photo)
    listed = {
        "file": "one.jpg",
        "sha256": hashlib.sha256(photo).hexdigest(),
        "truth": "Basal_Cell_Carcinoma",
        "truth_by": "histopathology",
        "credit": "A. Painter, CC BY 4.0.",
    }
    (examples / "examples.yaml").write_text(yaml.safe_dump([listed]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    run_demo(tmp_path / "demo", 0)
    said = capsys.readouterr().out
    assert verbs[-1] == ("diagnose", "toy", str(examples / "one.jpg"))
    assert [words[0] for words in verbs] == ["build", "train", "evaluate", "diagnose", "diagnose"]
    assert "6/6  Diagnosing a real photo" in said
    assert "photo Basal Cell Carcinoma, by histopathology. A. Painter, CC BY 4.0.)" in said
    assert said.index("serve toy") < said.index(f"serve {tmp_path / 'demo' / 'bundle'}")


def test_the_demo_says_that_no_released_model_is_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verbs: list[tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "RELEASED", "nowhere")
    run_demo(tmp_path / "demo", 0)
    said = capsys.readouterr().out
    assert "5/5  Diagnosing one test image" in said
    assert "No real photo is diagnosed: bundle nowhere does not exist" in said
    assert [words[0] for words in verbs] == ["build", "train", "evaluate", "diagnose"]
    assert "serve nowhere" not in said
    assert said.rstrip().endswith(f"serve {tmp_path / 'demo' / 'bundle'}")
