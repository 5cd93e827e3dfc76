"""A small bundle: half precision, no gallery. What is evaluated is the very file that is kept."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from skindx.data.manifest import Record, read_image, read_manifest, split_of, write_manifest
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.adapt import adapt
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.bundle_changes import Forgotten, forget, would_forget
from skindx.models.classifier.classifier import build_classifier
from skindx.models.conformal import fit_on_records
from skindx.models.ensemble import predict_members, predict_records
from skindx.models.ood.ood_check import features_of
from skindx.monitor.photo_numbers import PhotoNumbers
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checkpoint.finished import FinishedMember, in_half_precision, save_member
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.pack import ROUNDING, EnsembleBuilder, pack_run

SMALL = {"model": "test_resnet", "preprocess": {"size": 32}}
SETTINGS = {
    "members": [{"name": "a", **SMALL}, {"name": "b", **SMALL, "views": 2}],
    "recipe": {"epochs": 1, "batch": 18},
    "engine": {"accelerator": "cpu"},
}
PACK = {"weights": "fp16", "gallery": False, "ood_features": "calibration"}
FLAT = "bn1.running_var"

Packs = Callable[..., Bundle]


@pytest.fixture(scope="module")
def dataset(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dataset with enough calibration images for a check."""
    folder = tmp_path_factory.mktemp("small-bundle") / "data"
    shutil.copytree(small_dataset, folder)
    records = read_manifest(folder)
    held = {record.path for record in split_of(records, "train")[::2]}
    moved = [replace(one, split="calibration") if one.path in held else one for one in records]
    write_manifest(folder, moved)
    return folder


@pytest.fixture(scope="module")
def packed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Packs:
    """Return what packs a run of two finished members by given settings."""
    run = tmp_path_factory.mktemp("small-run") / "run"
    settings, taxonomy = TrainSettings.parse(SETTINGS), Taxonomy.load(dataset / "taxonomy.yaml")
    val = len(split_of(read_manifest(dataset), "val"))
    torch.manual_seed(3)
    for member in settings.members:
        state = build_classifier(member, 3).net.state_dict()
        state[FLAT][0] = 1e-6  # a channel that hardly varies
        log_NC = np.log(np.full((val, 3), 1 / 3))  # not what it serves once it is rounded
        finished = FinishedMember(state, log_NC, np.zeros(val, np.int64))
        mark = fingerprint(settings, member, dataset)
        save_member(run, member.name, finished, [{"epoch": 1}], mark)

    def pack(folder: Path, **settings: object) -> Bundle:
        shutil.copytree(run, folder)
        return pack_run(folder, dataset, TrainSettings.parse({**SETTINGS, **settings}), taxonomy)

    return pack


@pytest.fixture(scope="module")
def plain(packed: Packs, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return packed(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def small(packed: Packs, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return packed(tmp_path_factory.mktemp("rounded") / "run", pack=PACK)


def weights(bundle: Bundle, member: str = "a") -> dict[str, torch.Tensor]:
    return load_file(bundle.path / f"members/{member}/model.safetensors")


def held_of(dataset: Path) -> list[Record]:
    return split_of(read_manifest(dataset), "calibration")


def size_of(bundle: Bundle) -> int:
    return sum(file.stat().st_size for file in bundle.path.rglob("*") if file.is_file())


def test_half_precision_keeps_what_would_lose_its_range() -> None:
    rounded = in_half_precision({
        "weight": torch.tensor([1 / 3, 1e-9, 0.0]),
        "large": torch.tensor([1.0, 70_000.0]),
        "tiny": torch.tensor([1e-6, -2e-5]),
        "bn.running_var": torch.tensor([1.0, 1e-6]),
        "fine.running_var": torch.tensor([1.0, 0.0]),
        "count": torch.tensor(3),
    })  # fmt: skip
    halved = {name for name, value in rounded.items() if value.dtype == torch.float16}
    assert halved == {"weight", "fine.running_var"}
    assert rounded["count"].dtype == torch.int64


def test_what_is_packed_is_what_everything_was_fitted_to(
    small: Bundle, plain: Bundle, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weights(plain)["fc.weight"].dtype == torch.float32
    kinds = {name: value.dtype for name, value in weights(small).items()}
    assert (kinds["fc.weight"], kinds[FLAT]) == (torch.float16, torch.float32)
    assert size_of(small) < 0.6 * size_of(plain)
    ensemble, records = small.ensemble(), read_manifest(dataset)
    assert all(p.dtype == torch.float32 for p in ensemble.members[0].classifier.parameters())
    # Validation: the evidence is what the packed networks say, not what members stored.
    settings = TrainSettings.parse({**SETTINGS, "pack": PACK})
    run = small.path.parent
    builder = EnsembleBuilder(run, dataset, settings, small.taxonomy, records, "cpu")
    val = split_of(records, "val")
    held_P = np.array([record.split == "val" for record in builder.images])
    served_MNC = predict_members(ensemble.members, dataset, val)
    for part, served_NC in zip(builder.parts(["a", "b"]), served_MNC, strict=True):
        np.testing.assert_array_equal(builder.predict(part, held_P), served_NC)
    # Calibration: thresholds and scores are of the packed networks.
    held = held_of(dataset)
    answers_NC, _ = predict_records(ensemble, dataset, held)
    assert small.spec.conformal == fit_on_records(answers_NC, held, small.taxonomy)
    images, check = [read_image(dataset, record) for record in held], small.ood()
    assert check is not None
    features = features_of(ensemble, images, ensemble.predict_with_features(images))
    halved = tuple(part.astype(np.float16).astype(np.float32) for part in features.pooled_MND)
    scores_NK = check.scores(replace(features, pooled_MND=halved))
    np.testing.assert_allclose(scores_NK, check.scores_NK, rtol=0.01)
    # The largest change of an answer stands in the index: of one view, by hand.
    change = small.spec.provenance[ROUNDING]
    before, after = (
        np.exp(predict_members(
            [replace(member, views=1) for member in bundle.ensemble().members], dataset, val
        ))
        for bundle in (plain, small)
    )  # fmt: skip
    assert 0 < change == pytest.approx(np.abs(after - before).max(), abs=1e-6)
    assert f"{ROUNDING}: {change}" in (small.path / "MODEL_CARD.md").read_text()
    # Packed again it is there already; other settings are another bundle.
    assert pack_run(run, dataset, settings, small.taxonomy).digest == small.digest
    assert "packed from these members already" in capsys.readouterr().out
    assert ROUNDING not in plain.spec.provenance


def test_files_in_half_precision_are_packed_as_they_are(
    small: Bundle, packed: Packs, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    packed(run)
    shutil.rmtree(run / "bundle")
    for file in run.glob("members/*/model.safetensors"):
        save_file({k: v.half() if v.is_floating_point() else v
                   for k, v in load_file(file).items()}, file)  # fmt: skip
    (run / "train.yaml").write_text("")
    TrainSettings.parse(SETTINGS).save(run / "train.yaml")
    raw = {"reused": [{"run": str(run), "member": name} for name in "ab"], "members": []}
    bundle = packed(tmp_path / "other", **raw)
    assert weights(bundle)["fc.weight"].dtype == torch.float16
    assert ROUNDING not in bundle.spec.provenance
    assert bundle.spec.temperature == pytest.approx(small.spec.temperature, rel=0.02)


def test_the_check_refuses_the_same_without_features_of_training_images(
    small: Bundle, packed: Packs, dataset: Path, tmp_path: Path
) -> None:
    whole = packed(tmp_path / "run", pack={**PACK, "ood_features": "training"})
    one, other = whole.ood(), small.ood()
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.scores_NK, other.scores_NK)
    for ours, theirs in zip(one.detectors, other.detectors, strict=True):
        for name, value in ours.tensors().items():
            np.testing.assert_array_equal(value, theirs.tensors()[name])
    sizes = [(bundle.path / "ood/images.safetensors").stat().st_size for bundle in (whole, small)]
    assert sizes[1] < sizes[0] / 3
    references = [PhotoNumbers(bundle, bundle.ood()).reference() for bundle in (whole, small)]
    for numbers_NK, why in references:
        assert numbers_NK is not None, why
    np.testing.assert_allclose(references[1][0], references[0][0], atol=2e-3)
    # A removed training image stays in the detectors' means; a calibration image goes.
    train, held = (split_of(read_manifest(dataset), part) for part in ("train", "calibration"))
    path = shutil.copytree(small.path, tmp_path / "bundle")
    assert would_forget(path, [train[0].sha256]).ood == 0
    assert would_forget(path, [held[0].sha256]) == Forgotten(ood=1, refitted=True, fingerprints=1)
    forget(path, [held[0].sha256])
    left = open_bundle(path)
    assert left.spec.ood is not None
    assert left.spec.ood.images == len(held) - 1
    check = left.ood()
    assert check is not None
    np.testing.assert_array_equal(check.scores_NK, one.scores_NK[1:])
    assert PhotoNumbers(left, check).reference()[0] is not None
    few = would_forget(path, [record.sha256 for record in held[:30]])
    assert (few.ood, few.refitted) == (29, False)


def test_it_is_adapted_and_serves(small: Bundle, dataset: Path, tmp_path: Path) -> None:
    local = shutil.copytree(dataset, tmp_path / "local")
    records = split_of(read_manifest(local), "test") + split_of(read_manifest(local), "val")
    fresh = [replace(record, split="test") for record in records]
    write_manifest(local, fresh)
    shutil.copytree(small.path, tmp_path / "parent")
    parent = without_seen(open_bundle(tmp_path / "parent"))
    done = adapt(parent.path, local, tmp_path / "new", draws=20).bundle
    assert weights(done)["fc.weight"].dtype == torch.float16
    for name in ("a", "b"):
        for key, value in weights(done, name).items():
            assert torch.equal(value, weights(small, name)[key])
    check = done.ood()
    assert check is not None
    assert check.images == len(fresh)
    images = [read_image(local, record) for record in fresh]
    ensemble = done.ensemble()
    features = features_of(ensemble, images, ensemble.predict_with_features(images))
    np.testing.assert_allclose(check.scores(features), check.scores_NK, rtol=1e-4)
    assert PhotoNumbers(done, check).reference()[0] is not None
    (answer,) = Predictor.load(done.path).predict(images[:1])
    assert answer.probabilities_C.sum() == pytest.approx(1)


def without_seen(bundle: Bundle) -> Bundle:
    """Return a bundle of an older version: it does not know which images made it."""
    from skindx.models.bundle.bundle import write_index

    for name in ("seen.parquet", "fingerprints.safetensors"):
        (bundle.path / name).unlink()
    write_index(bundle.path, bundle.spec)
    return open_bundle(bundle.path)


def parts_of(bundle: Bundle) -> dict[str, str]:
    """Return the digests of all files but the card, which says the second it was packed in."""
    return {name: digest for name, digest in bundle.spec.files.items() if name != "MODEL_CARD.md"}


def test_what_training_changes_is_less_of_a_reason_to_refuse(
    packed: Packs, small: Bundle, dataset: Path, tmp_path: Path
) -> None:
    changes = {"scale": [0.7, 1], "white": 0.3, "colour": 0.3}
    wide = packed(tmp_path / "run", pack=PACK, ensemble={"ood_changes": changes})
    again = packed(tmp_path / "again", pack=PACK, ensemble={"ood_changes": changes})
    assert parts_of(again) == parts_of(wide) != parts_of(small)
    held = split_of(read_manifest(dataset), "calibration")
    warm = [(read_image(dataset, one) * [1, 0.85, 0.7]).astype(np.uint8) for one in held]

    def scores(bundle: Bundle) -> np.ndarray:
        """Return how far the photos stand out, on the scale of the calibration images."""
        ensemble, check = bundle.ensemble(), bundle.ood()
        assert check is not None
        output = ensemble.predict_with_features(warm)
        return check.combined(features_of(ensemble, warm, output, check.needs))

    assert np.median(scores(wide)) < np.median(scores(small))
