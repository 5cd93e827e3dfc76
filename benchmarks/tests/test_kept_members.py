"""Members that outlive their machine: half precision, no path of it, and reused elsewhere."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from small_dataset import free_dataset

from skindx.core.errors import UserError
from skindx.data.loader.batches import partition
from skindx.data.manifest import read_manifest
from skindx.models.bundle.bundle import open_bundle
from skindx.models.classifier.classifier import build_classifier
from skindx.models.combination import apply_temperature
from skindx.models.ensemble import Member, predict_records
from skindx.training import run as runs
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checkpoint.finished import FinishedMember, load_member, save_member
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.ensembles.member_refs import is_there, member_refs
from skindx.training.run import train, unfinished
from skindx_bench.train.ensemble_passes import predict_views
from skindx_bench.train.kept_members import halved, keep_members

NAMES = ("one", "two")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return free_dataset(tmp_path_factory.mktemp("kept") / "data", 48).write()


def start(folder: Path) -> Path:
    """Write starting weights, the same in any folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    network = build_classifier(settings(None).members[0].network(), 2)
    save_file(network.net.state_dict(), folder / "start.safetensors")
    return folder / "start.safetensors"


def settings(weights: Path | None, **changes: Any) -> TrainSettings:
    members = [
        {"name": name, "model": "test_resnet", "preprocess": {"size": 32}, "seed": seed,
         "weights": weights and str(weights)}
        for seed, name in enumerate(NAMES)
    ]  # fmt: skip
    raw = {
        "members": members,
        "recipe": {"epochs": 1, "batch": 12},
        "engine": {"accelerator": "cpu"},
    }
    return TrainSettings.parse({**raw, **changes})


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A folder with a run and its starting weights, as a training leaves them."""
    folder = tmp_path_factory.mktemp("made")
    made = settings(start(folder / "here"))
    (folder / "run").mkdir()
    made.save(folder / "run" / SETTINGS)
    for member in made.members:
        torch.manual_seed(member.seed)
        classifier = build_classifier(member.network(), 2).eval()
        torch.nn.init.normal_(classifier.net.get_classifier().weight)  # type: ignore[operator]
        _, held = partition(read_manifest(dataset), None, 5)
        log_1NC = predict_views(
            Member(member.name, classifier, member.preprocess), dataset, held, 1
        )
        finished = FinishedMember(
            classifier.net.state_dict(), log_1NC[0], np.array([n % 2 for n in range(len(held))])
        )
        history = [{"epoch": 1, "val_top1": 0.5}]
        key = fingerprint(made, member, dataset)
        save_member(folder / "run", member.name, finished, history, key)
    return folder


@pytest.fixture
def run(tmp_path: Path, made_once: Path) -> Path:
    """A run of this test's own, whose starting weights lie elsewhere on this machine."""
    shutil.copytree(made_once / "run", tmp_path / "run")
    return tmp_path / "run"


def reused(kept: Path) -> TrainSettings:
    refs = [{"run": str(kept / name), "member": name} for name in NAMES]
    return TrainSettings.parse({"reused": refs, "engine": {"accelerator": "cpu", "ranks": 1}})


def test_a_kept_member_is_small_whole_and_names_no_folder(
    run: Path, tmp_path: Path, made_once: Path
) -> None:
    kept = keep_members(run, tmp_path / "kept")
    assert kept == [tmp_path / "kept" / name for name in NAMES]
    for name, folder in zip(NAMES, kept, strict=True):
        files = {file.name for file in (folder / "members" / name).iterdir()}
        assert files == {"member.json", "history.csv", "validation.npz", "model.safetensors"}
        whole = (run / "members" / name / "model.safetensors").stat().st_size
        assert (folder / "members" / name / "model.safetensors").stat().st_size < 0.6 * whole
        for file in (folder / SETTINGS, folder / "members" / name / "member.json"):
            text = file.read_text()
            assert "start.safetensors" in text
            assert str(made_once) not in text
        before, after = load_member(run, name), load_member(folder, name)
        np.testing.assert_array_equal(before.validation_NC, after.validation_NC)
        for key, tensor in before.state.items():
            torch.testing.assert_close(
                after.state[key].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-6
            )
    assert keep_members(run, tmp_path / "kept") == []  # there already


def test_half_precision_spares_what_it_would_spoil() -> None:
    state = {
        "a.running_var": torch.tensor([1e-7, 2e-8, 3.0]),  # beside 1e-5 nothing is lost
        "b.running_var": torch.tensor([7e4]),  # infinite in half precision
        "a.running_mean": torch.tensor([1.5, -2.25]),
        "a.num_batches_tracked": torch.tensor(70000),
        "head.weight": torch.tensor([0.1, 1e5]),
    }
    kept = halved(state)
    assert kept["a.running_var"].dtype == kept["a.running_mean"].dtype == torch.float16
    assert kept["b.running_var"].dtype == kept["head.weight"].dtype == torch.float32
    assert kept["a.num_batches_tracked"].item() == 70000
    for eps in (1e-5, 1e-3):
        before, after = (1 / (own["a.running_var"].float() + eps).sqrt() for own in (state, kept))
        torch.testing.assert_close(after, before, rtol=2e-3, atol=0)
    # Rounded to nothing, it would change what it divides by more than a thousandth.
    assert halved({"c.running_var": torch.tensor([2.9e-8])})["c.running_var"].dtype == torch.float32


def test_a_kept_member_is_finished_elsewhere_with_weights_elsewhere_or_nowhere(
    run: Path, tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_members(run, tmp_path / "kept")
    shutil.rmtree(run)
    monkeypatch.chdir(tmp_path)  # its starting weights are not here
    refs = member_refs(tmp_path / "new", reused(tmp_path / "kept"))
    assert all(is_there(ref, dataset) for ref in refs.values())
    # The same command in a fresh checkout: the kept members copied into its run are its own.
    moved = settings(start(tmp_path / "elsewhere"))
    for name in NAMES:
        shutil.copytree(
            tmp_path / "kept" / name / "members" / name, tmp_path / "fresh" / "members" / name
        )
    assert unfinished(tmp_path / "fresh", dataset, moved) == []
    # Other weights, or other settings, are another training.
    (tmp_path / "elsewhere" / "start.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match="the content of the member's weights"):
        unfinished(tmp_path / "fresh", dataset, moved)
    longer = settings(start(tmp_path / "elsewhere"), recipe={"epochs": 2, "batch": 12})
    with pytest.raises(UserError, match=r"recipe.epochs was 1 and is 2"):
        unfinished(tmp_path / "fresh", dataset, longer)
    without = settings(None)
    with pytest.raises(UserError, match=r"members.weights"):
        unfinished(tmp_path / "fresh", dataset, without)


def test_a_member_of_another_dataset_is_not_reused(run: Path, tmp_path: Path) -> None:
    keep_members(run, tmp_path / "kept")
    other = free_dataset(tmp_path / "other", 40).write()
    refs = member_refs(tmp_path / "new", reused(tmp_path / "kept"))
    with pytest.raises(UserError, match="was trained on other data"):
        is_there(refs["one"], other)


def test_a_training_goes_on_from_kept_members_and_answers_alike(
    run: Path, tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`skindx train` with `reused` packs a bundle elsewhere; half precision costs a thousandth."""

    def launched(*arguments: object) -> None:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr("skindx.training.ensembles.ready_ensemble.described", lambda *_: iter(()))
    monkeypatch.setattr(runs, "_launch_ranks", launched)
    keep_members(run, tmp_path / "kept")
    moved = run.rename(tmp_path / "gone")
    bundle = train(dataset, reused(tmp_path / "kept"), tmp_path / "new")
    assert bundle is not None
    records = read_manifest(dataset)
    says_NC, members_MNC = predict_records(open_bundle(bundle.path).ensemble(), dataset, records)
    assert members_MNC.shape == (2, len(records), 2)
    for number, name in enumerate(NAMES):
        member = settings(None).members[number]
        classifier = build_classifier(member.network(), 2).eval()
        classifier.net.load_state_dict(load_member(moved, name).state)
        whole = Member(name, classifier, member.preprocess)
        before_NC = predict_views(whole, dataset, records, 1)[0]
        spec = next(own for own in bundle.spec.members if own.name == name)
        expected_NC = apply_temperature(before_NC, spec.temperature)
        np.testing.assert_allclose(members_MNC[number], expected_NC, atol=5e-3)
    assert np.isfinite(says_NC).all()


def test_bad_input_is_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        keep_members(tmp_path, tmp_path / "kept")
    with pytest.raises(UserError, match="trains no member 'three'; it has one, two"):
        keep_members(run, tmp_path / "kept", ["three"])
    keep_members(run, tmp_path / "kept", ["two"])
    assert [own.name for own in (tmp_path / "kept").iterdir()] == ["two"]
    index = tmp_path / "kept" / "two" / "members" / "two" / "member.json"
    text = index.read_text()
    index.write_text(text.replace('"fingerprint": "', '"fingerprint": "0'))
    with pytest.raises(UserError, match="keeps another training of two"):
        keep_members(run, tmp_path / "kept")
    shutil.rmtree(run / "members")
    with pytest.raises(UserError, match="has no finished member yet"):
        keep_members(run, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert yaml.safe_load((run / SETTINGS).read_text())["name"] == "skindx"


def test_the_command_says_what_it_kept(run: Path, tmp_path: Path, skindx: Any) -> None:
    arguments = ("bench", "train", "keep", str(run), "--to", str(tmp_path / "kept"))
    code, said, _ = skindx(*arguments)
    assert code == 0
    assert said.count("kept ") == 2
    code, said, _ = skindx(*arguments)
    assert code == 0
    assert "has all finished members" in said
    assert load_file(tmp_path / "kept" / "one" / "members" / "one" / "model.safetensors")
