"""Heads on a frozen trunk: from a folder with a tower to a bundle, features computed once."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_engine import Alone, HeadsEngine
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from test_trainer import Silent
from tower_folders import timm_folder

from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest
from skindx.models.bundle.bundle import open_bundle
from skindx.models.ensemble import Ensemble, predict_records
from skindx.training import state
from skindx.training.checkpoint.finished import FinishedMember, load_member
from skindx.training.config.run import TrainSettings
from skindx.training.loop import fit
from skindx.training.run import train
from skindx.training.tasks import heads_job
from skindx.training.tasks.head_data import HeadData, solve
from skindx.training.tasks.heads_task import setup_heads

MEMBER = {"trunk": "frozen", "pretrained": True, "preprocess": {"size": 64}}
KINDS: dict[str, Any] = {
    "mlp": "mlp",
    "near": {"kind": "knn", "neighbours": 5},
    "mean": "prototypes",
    "exact": {"kind": "linear", "solver": "exact"},
}


def _settings(tower: Path) -> dict[str, Any]:
    model = {**MEMBER, "model": f"local-dir:{tower}"}
    return {
        "engine": {"accelerator": "cpu", "ranks": 1},
        "recipe": {"epochs": 5, "batch": 16, "mix": {"mixup": 0.2}, "ema": {"decay": 0.9}},
        "folds": 2,
        "members": [
            {**model, "name": "line", "fold": "each", "views": 2},
            *({**model, "name": name, "head": head} for name, head in KINDS.items()),
        ],
    }


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("towers") / "tower"
    timm_folder(folder, licence="cc-by-nc-4.0")
    return folder


@pytest.fixture(scope="module")
def run(small_dataset: Path, tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all heads in one process that is the only rank, without a way to another machine."""
    folder = tmp_path_factory.mktemp("heads")
    computed = run_ranks(1, _train, small_dataset, folder, tower, timeout_s=280)
    assert computed == [2]  # two views, the first of which serves all other heads
    return folder / "run"


def _train(dataset: Path, folder: Path, tower: Path) -> int:
    """Return over how many views of all images features were computed."""
    import socket

    connect = socket.socket.connect

    def here_only(self: socket.socket, address: Any) -> None:
        assert not isinstance(address, tuple) or address[0] in ("127.0.0.1", "localhost"), address
        connect(self, address)

    socket.socket.connect = here_only
    computed = []
    write = heads_job.FeatureFiles._write
    heads_job.FeatureFiles._write = lambda *given: (computed.append(1), write(*given))[1]
    assert train(dataset, TrainSettings.parse(_settings(tower)), folder / "run") is not None
    return len(computed)


@pytest.mark.distributed
def test_one_command_packs_a_whole_bundle(run: Path, tower: Path) -> None:
    bundle = open_bundle(run / "bundle")
    names = [member.name for member in bundle.spec.members]
    assert names == ["line-fold0", "line-fold1", *KINDS]
    assert bundle.spec.conformal
    assert bundle.spec.gallery
    text = (run / "bundle/bundle.json").read_text()
    assert "local-dir" not in text
    assert "hf-hub" not in text
    assert {member.classifier.model for member in bundle.spec.members} == {"test_vit"}
    card = (run / "bundle/MODEL_CARD.md").read_text()
    assert "## NOTICE" in card
    assert "cc-by-nc-4.0 <https://creativecommons.org/licenses/by-nc/4.0/>" in card


@pytest.mark.distributed
def test_the_trunk_is_stored_and_passed_once(run: Path, small_dataset: Path) -> None:
    bundle = open_bundle(run / "bundle")
    shared = bundle.spec.members
    (trunk,) = {member.trunk for member in shared}
    assert f"trunks/{trunk}.safetensors" in bundle.spec.files
    for member in shared:
        own = load_file(run / f"bundle/members/{member.name}/model.safetensors")
        assert all(name.startswith("head.") for name in own)
    ensemble = bundle.ensemble()
    ensemble = Ensemble(ensemble.members[:-1])
    first, *others = (m.classifier.net.blocks[0].attn.qkv.weight for m in ensemble.members)
    assert all(other.data_ptr() == first.data_ptr() for other in others)
    passes = []
    for member in ensemble.members:
        net = member.classifier.net
        net.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    records = read_manifest(small_dataset)[:4]
    together, apart = predict_records(ensemble, small_dataset, records)
    assert len(passes) == 2 * len(records)  # the two views of the line
    assert np.isfinite(together).all()
    alone = [
        predict_records(Ensemble((member,)), small_dataset, records)[1][0]
        for member in ensemble.members
    ]
    assert np.allclose(apart, alone, atol=1e-7)


@pytest.mark.distributed
def test_cached_features_predict_what_the_bundle_serves(run: Path, small_dataset: Path) -> None:
    bundle = open_bundle(run / "bundle")
    records = [record for record in read_manifest(small_dataset) if record.split == "val"]
    _, member_MNC = predict_records(bundle.ensemble(), small_dataset, records)
    for spec, served_NC in zip(bundle.spec.members, member_MNC, strict=True):
        if spec.name.startswith("line"):
            continue  # validated on its fold
        log_NC = load_member(run, spec.name).validation_NC / spec.temperature
        cached_NC = np.exp(log_NC) / np.exp(log_NC).sum(axis=1, keepdims=True)
        assert np.abs(cached_NC - served_NC).max() < 0.02, spec.name


@pytest.mark.distributed
def test_what_a_run_leaves_of_heads(run: Path, small_dataset: Path) -> None:
    assert len(list((small_dataset / "cache").glob("features-*.f16"))) == 2
    history = (run / "members/line-fold1/history.csv").read_text().splitlines()
    assert len(history) == 6
    row = json.loads((run / "members/mlp/member.json").read_text())
    assert re.fullmatch("[0-9a-f]{16}", row["trunk"])


@pytest.mark.distributed
def test_a_head_of_another_trunk_is_refused(run: Path, small_dataset: Path, tmp_path: Path) -> None:
    from skindx.taxonomy import Taxonomy
    from skindx.training.ensembles.pack import EnsembleBuilder

    settings = TrainSettings.load(run / "train.yaml")
    weights = settings.members[-2].weights
    assert weights
    changed = {name: tensor + 1e-3 for name, tensor in load_file(weights).items()}
    save_file(changed, tmp_path / "other.safetensors")
    member = settings.members[-2].model_copy(update={"weights": tmp_path / "other.safetensors"})
    settings = settings.model_copy(update={"members": (member,)})
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    builder = EnsembleBuilder(
        run, small_dataset, settings, taxonomy, read_manifest(small_dataset), "cpu"
    )
    with pytest.raises(UserError, match="trained on the trunk"):
        builder.parts([member.name])


@pytest.mark.distributed
def test_two_ranks_under_zero_compute_and_train_what_one_does(
    run: Path, small_dataset: Path, tmp_path: Path
) -> None:
    one, two = run_ranks(2, _by_two, small_dataset, run, tmp_path, timeout_s=280)
    assert one.keys() == two.keys() == {"mlp", "line-fold0", "line-fold1"}
    for name, log_NC in one.items():
        alone_NC = load_member(run, name).validation_NC
        assert np.array_equal(log_NC, two[name])
        assert np.abs(np.exp(log_NC) - np.exp(alone_NC)).max() < 1e-3, name


def _by_two(dataset: Path, run: Path, folder: Path) -> dict[str, np.ndarray]:
    """Train some of the run's heads on two ranks, with a cache of features of their own."""
    from skindx.taxonomy import Taxonomy
    from skindx.training.deepspeed.ranks import join
    from skindx.training.tasks.heads_job import heads_jobs

    sets = ["loader.cache={kind: disk}", "engine.zero=2"]
    settings = TrainSettings.load(run / "train.yaml", sets)
    cache = settings.loader.cache.model_copy(update={"folder": folder / "cache"})
    loader = settings.loader.model_copy(update={"cache": cache})
    members = tuple(
        own for own in settings.members if own.name in ("mlp", "line-fold0", "line-fold1")
    )
    settings = settings.model_copy(update={"members": members, "loader": loader})
    classes = Taxonomy.load(dataset / "taxonomy.yaml").keys
    records, mesh = read_manifest(dataset), join(settings.engine)
    found = {}
    for job in heads_jobs(folder, dataset, settings, records, classes, mesh=mesh):
        for member, own in zip(job.members, fit(job.setup(mesh, print), Silent()), strict=True):
            found[member.name] = own.validation_NC
    return found


# Heads on made-up features, without a network.

CLASSES = 3


def _heads(recipe: dict[str, Any], head: Any, count: int, **member: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels_P = np.arange(90) % CLASSES
    centres = rng.normal(0, 2, (CLASSES, 8))
    features = [
        (centres[labels_P] + rng.normal(0, 1, (90, 8)) * [1, 1, 1, 1, 1, 1, 2, 0] + 3).astype(
            np.float16
        )
        for _ in range(member.get("views", 1))
    ]
    own = {"model": "test_vit", "trunk": "frozen", "head": head, **member}
    settings = TrainSettings.parse(
        {
            "engine": {"accelerator": "cpu"},
            "recipe": {"epochs": 6, "batch": 10, "warmup_epochs": 1, **recipe},
            "members": [{**own, "name": f"m{n}", "seed": n} for n in range(count)],
        }
    )
    rows = np.arange(90)
    data = [
        HeadData(member, features, labels_P, rows[rows % 5 != n], rows[rows % 5 == n], CLASSES)
        for n, member in enumerate(settings.members)
    ]
    return settings, data


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "Engine", HeadsEngine)


def _trained(settings: Any, data: list[HeadData]) -> list[FinishedMember]:
    training = setup_heads(settings, data, label="heads", place="head", mesh=Alone(), say=print)
    return fit(training, Silent())


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"mix": {"mixup": 0.4, "clean_epochs": 1}, "ema": {"decay": 0.9}},
        {"loss": {"kind": "logit_adjusted"}, "class_weights": "balanced", "learning_rate": 0.02},
        {"optimizer": "sgd", "learning_rate": 0.5},
    ],
    ids=["plain", "mixup and average", "rare classes", "clipped"],
)
def test_heads_trained_at_once_are_those_trained_alone(
    plain: None, head: str, recipe: dict[str, Any]
) -> None:
    settings, data = _heads({"epochs": 3, **recipe}, head, 2, views=2)
    together = _trained(settings, data)
    for own, finished in zip(data, together, strict=True):
        (alone,) = _trained(settings, [own])
        assert np.abs(np.exp(alone.validation_NC) - np.exp(finished.validation_NC)).max() < 1e-6


def test_a_linear_head_learns_and_its_scale_is_folded_in(plain: None) -> None:
    settings, data = _heads({"learning_rate": 0.05, "label_smoothing": 0}, "linear", 1)
    (finished,) = _trained(settings, data)
    right = finished.validation_NC.argmax(axis=1) == finished.truth_N
    assert right.mean() > 0.9
    features = data[0].features[0][data[0].val_N].astype(np.float32)
    logits = (
        features @ finished.state["head.weight"].numpy().T + finished.state["head.bias"].numpy()
    )
    wanted = torch.log_softmax(torch.from_numpy(logits).double(), 1).numpy()
    assert np.allclose(finished.validation_NC, wanted, atol=1e-5)


@pytest.mark.parametrize("head", KINDS.values(), ids=KINDS)
def test_every_head_tells_easy_classes_apart(plain: None, head: Any) -> None:
    settings, data = _heads({"learning_rate": 0.02}, head, 1)
    if head == "mlp":
        (finished,) = _trained(settings, data)
    else:
        finished = solve(data[0], settings.recipe, "head").finished
    assert (finished.validation_NC.argmax(axis=1) == finished.truth_N).mean() > 0.8
    assert np.allclose(np.exp(finished.validation_NC).sum(axis=1), 1)


def test_the_exact_head_is_scikit_learns() -> None:
    from sklearn.linear_model import LogisticRegression

    settings, data = _heads({}, {"kind": "linear", "solver": "exact"}, 1)
    solved = solve(data[0], settings.recipe, "head")
    mean_D, std_D = data[0].scale()
    own = data[0].features[0].astype(np.float64)
    model = LogisticRegression(C=solved.history[-1]["C"], max_iter=2000, tol=1e-8)
    model.fit((own[data[0].train_N] - mean_D) / std_D, data[0].labels_P[data[0].train_N])
    wanted = model.predict_log_proba((own[data[0].val_N] - mean_D) / std_D)
    assert np.allclose(np.exp(solved.finished.validation_NC), np.exp(wanted), atol=5e-3)


def test_neighbours_vote_by_hand() -> None:
    settings, data = _heads({}, {"kind": "knn", "neighbours": 3, "temperature": 0.5}, 1)
    log_NC = solve(data[0], settings.recipe, "head").finished.validation_NC
    unit = data[0].features[0].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = unit[data[0].val_N[0]] @ unit[data[0].train_N].T
    near = np.argsort(-cosine)[:3]
    votes = np.bincount(
        data[0].labels_P[data[0].train_N][near], np.exp(cosine[near] / 0.5), minlength=CLASSES
    )
    wanted = 0.999 * votes / votes.sum() + 0.001 / CLASSES
    assert np.allclose(np.exp(log_NC[0]), wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head": "knn", "trunk": "trained"}, "set trunk=frozen"),
        ({"head": "nearest"}, "is not a valid kind"),
        ({"recipe": {"resize": {"start": 32}}}, "no use with a frozen trunk"),
        ({"recipe": {"layer_decay": 0.8}}, "no layers"),
        ({"recipe": {"mix": {"mixup": 0}}}, "mixup but not with cutmix"),
    ],
)
def test_settings_that_do_not_go_with_a_frozen_trunk(change: dict[str, Any], said: str) -> None:
    member = {"name": "a", "model": "test_vit", "trunk": "frozen", **change}
    with pytest.raises(UserError, match=said):
        TrainSettings.parse({"members": [member]})
