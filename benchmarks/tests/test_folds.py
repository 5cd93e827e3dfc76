"""Networks out of fold: rows that outlive the machine, and gains whose rivals are chosen inside."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_dataset import free_dataset

from skindx.core.errors import UserError
from skindx.data.loader.batches import learning, partition
from skindx.data.manifest import read_manifest
from skindx.metrics import Statistic
from skindx.models.classifier.classifier import build_classifier
from skindx.models.ensemble import Member
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checkpoint.finished import FinishedMember, save_member
from skindx.training.config.run import TrainSettings
from skindx_bench.train import folds as bench
from skindx_bench.train.ensemble_passes import predict_views
from skindx_bench.train.fold_gains import (
    TUNED,
    FoldDraws,
    Study,
    Way,
    balanced_biases,
    class_gains,
    gains,
    trials,
)
from skindx_bench.train.kept_predictions import Kept, read_kept, write_kept

CLASSES = ("a", "b", "c")
ROOT = Path(__file__).parents[2]

# Statistics, of networks that are made up.


def network(name: str, skill: float, *, seed: int, views: int = 1, bias: float = 0) -> Kept:
    """A network that knows `skill` of the truth, on 300 images of 150 groups in three folds."""
    truth_N = np.random.default_rng(7).integers(3, size=300)
    rng = np.random.default_rng(seed)
    score_NC = skill * np.eye(3)[truth_N] + rng.gumbel(size=(300, 3)) + [bias, 0, 0]
    own_NC = np.exp(score_NC) / np.exp(score_NC).sum(axis=1, keepdims=True)
    groups_N = np.arange(300) // 2
    return Kept(
        name,
        CLASSES,
        np.array([f"image-{n:03d}" for n in range(300)]),
        groups_N.astype(str),
        truth_N.astype(np.intp),
        groups_N % 3,
        {count: own_NC.copy() for count in (1, 2)[:views]},
        {"flops": 10},
        np.where(np.arange(300) % 4 < 2, "histopathology", "follow-up"),
    )


def study(*, views: int = 1, skills: tuple[float, float] = (1.5, 1.5)) -> Study:
    return Study([network(f"m{n}", s, seed=n, views=views) for n, s in enumerate(skills)])


@pytest.fixture(scope="module")
def pair() -> Study:
    """Two networks of one skill in two views; do not change it."""
    return study(views=2)


@pytest.fixture(scope="module")
def pair_gains(pair: Study) -> tuple[dict[str, Any], dict[str, Any]]:
    return gains(pair)


def test_each_draw_has_the_groups_of_each_fold(pair: Study) -> None:
    own = pair.ensemble(Way())
    draws = FoldDraws.of(own, draws=40)
    groups = np.unique(own.answers.groups_N)
    fold_G = groups.astype(int) % 3
    for fold in range(3):
        assert (draws.weights_DG[:, fold_G == fold].sum(axis=1) == 50).all()
    assert draws.weights_DG.max() > 1
    # A figure that is constant within each fold moves in no draw; its interval has a width still.
    between = draws.interval(Statistic.mean((own.fold_N == 1).astype(float)))
    assert between.value == pytest.approx(1 / 3)
    assert 0 < between.high - between.low < 0.05


def test_the_interval_of_a_paired_difference_is_that_of_its_images(pair: Study) -> None:
    """By hand: 300 images in pairs, a gain of 1 in every sixth group and 0 in the others."""
    own = pair.ensemble(Way())
    gain_N = (own.answers.groups_N.astype(int) // 3 % 6 == 0).astype(float)
    draws, gain = FoldDraws.of(own, draws=4000), Statistic.mean(gain_N, -1, 1)
    drawn = draws.interval(gain)
    share = gain_N.mean()
    error = np.sqrt(share * (1 - share) / 150)  # 150 groups decide, not 300 images
    assert drawn.value == pytest.approx(share)
    for bound, sign in ((drawn.low, -1), (drawn.high, 1)):
        assert bound == pytest.approx(share + sign * 1.96 * error, abs=0.01)
    # Images that 150 groups may not have shown, at the worst value, are joined by square and add.
    drawn, unseen = draws.interval(gain, cautious=True), 1 - 0.025 ** (1 / 150)
    for bound, sign, worst in ((drawn.low, -1, share + 1), (drawn.high, 1, 1 - share)):
        joined = np.hypot(1.96 * error, unseen * worst)
        assert bound == pytest.approx(share + sign * joined, abs=0.01)


def test_the_gain_is_the_difference_of_both_figures_on_the_same_images(pair_gains: Any) -> None:
    figures, parts = pair_gains
    for where in ("histology", "all"):
        for key in (TUNED, "balanced_accuracy", "balanced_rule_accuracy", "auroc", "log_loss"):
            for rival in ("chosen", "strongest", "same_cost"):
                gain = figures[f"{where}_ensemble_minus_{rival}_{key}"]
                ours, theirs = (figures[f"{where}_{one}_{key}"] for one in ("ensemble", rival))
                assert gain.value == pytest.approx(ours.value - theirs.value)
                assert gain.spread[0] < gain.value < gain.spread[1]
    assert parts["images"] == {"histology": 150, "all": 300}
    assert list(parts["choices"]) == ["histology", "all"]  # histology stands first
    assert parts["cost"] == {"m0 in 2 views": 1.0, "m1 in 2 views": 1.0}
    strongest = parts["choices"]["all"]["auroc"]["strongest"]
    best = max(figures["all_m0_auroc"].value, figures["all_m1_auroc"].value)
    assert figures[f"all_{strongest}_auroc"].value == best == figures["all_strongest_auroc"].value


def test_independent_members_gain_and_copies_do_not(pair_gains: Any) -> None:
    figures, _ = pair_gains
    assert figures["all_ensemble_minus_strongest_log_loss"].spread[1] < 0
    first = network("m", 1.5, seed=1)
    figures, parts = gains(Study([first, replace(first, name="copy")]))
    assert figures["all_ensemble_minus_chosen_balanced_accuracy"].value == 0
    assert parts["choices"]["all"]["top1"]["chosen"]["share"] == 0.5


def test_the_rival_is_chosen_without_the_judged_fold_and_the_strongest_by_it() -> None:
    members = [network("weak", 1.4, seed=0), network("strong", 1.6, seed=1)]
    before = Study(members)
    key, way = "balanced_accuracy", Way(fold=0)
    assert before.chosen(way, key, before.singles())[1]["best"] == {"strong": 1}
    weak = members[0].views[1]
    of_fold_N = members[0].fold_N == 0
    weak[of_fold_N] = np.eye(3)[members[0].truth_N[of_fold_N]] * 0.97 + 0.01  # right in this fold
    after = Study(members)
    assert after.chosen(way, key, after.singles())[1]["best"] == {"strong": 1}
    assert after.strongest(way, key, after.singles())[1] == "weak"
    # What members say elsewhere changes their calibration in this fold, and its truth does not.
    said = [fold.says((0, 1))[1] for fold in after.folds]
    other = Study([replace(own, truth_N=np.where(of_fold_N, 0, own.truth_N)) for own in members])
    np.testing.assert_array_equal(said[0], other.folds[0].says((0, 1))[1])
    assert np.abs(said[1] - other.folds[1].says((0, 1))[1]).max() > 0


def test_members_are_calibrated_before_they_are_averaged() -> None:
    """A member that names class a e^3 times too often counts as much as the other one."""
    plain, skewed = network("plain", 2, seed=1), network("skewed", 2, seed=2, bias=3)
    fold = Study([plain, skewed]).folds[0]
    mean_NC = np.mean([fold.says((0,))[1], fold.says((1,))[1]], axis=0)
    np.testing.assert_allclose(np.exp(fold.scores((0, 1), 1, by_class=True)[1]), mean_NC)
    shares = np.bincount(plain.truth_N, minlength=3) / 300
    np.testing.assert_allclose(fold.says((0, 1))[1].mean(axis=0), shares, atol=0.08)
    assert fold.says((1,), by_class=False)[1].mean(axis=0)[0] > shares[0] + 0.2


def test_every_other_way_to_judge_is_tried_over_both_rivals(pair: Study) -> None:
    figures, rivals = trials(pair)
    ways = ["cautious", "uncalibrated", "not_histology", "two_views", "fold0", "fold1", "fold2"]
    assert list(rivals) == ways
    for way in ways:
        for key in ("balanced_accuracy", "balanced_rule_accuracy", "auroc", "log_loss", "top1"):
            sign = -1 if key == "log_loss" else 1
            chosen, strongest = (
                figures[f"try_{way}_{rival}_{key}"] for rival in ("chosen", "strongest")
            )
            assert sign * strongest.value <= sign * chosen.value + 1e-9
            assert chosen.spread[0] < chosen.value < chosen.spread[1]
    assert figures["try_fold0_chosen_top1"].n == 1


def test_one_large_group_is_named_and_left_out_in_one_way() -> None:
    """Whatever one group of 60 images says, and it is wrong for one member, the others judge."""
    members = [network("one", 1.5, seed=1), network("two", 1.5, seed=2)]
    groups_N = np.where(members[0].fold_N == 0, "chain", members[0].groups_N)
    own = Study([replace(member, groups_N=groups_N) for member in members])
    assert own.largest == ("chain", 100)
    assert own.ensemble(Way(largest=False)).folds == 2
    assert "chain" not in own.ensemble(Way(largest=False)).answers.groups_N
    assert len(own.ensemble(Way()).fold_N) == 300


def test_gains_of_the_classes_average_to_the_balanced_gain(pair: Study, pair_gains: Any) -> None:
    whole, _ = pair_gains
    for rule in ("balanced_rule_accuracy", TUNED):
        by_class = class_gains(pair, rule)
        assert set(by_class) == {f"class_{name}_{rule}" for name in CLASSES}
        mean = np.mean([figure.value for figure in by_class.values()])
        assert mean == pytest.approx(whole[f"all_ensemble_minus_chosen_{rule}"].value)


def test_the_tuned_rule_is_the_best_that_one_bias_gives_and_sees_no_judged_image() -> None:
    """By hand: of two classes the second is named above 0.2, where all of its images lie."""
    says_N = np.array([0.05, 0.1, 0.15, 0.18, 0.25, 0.3, 0.6])
    truth_N = np.array([0, 0, 0, 0, 1, 1, 1])
    own_NC = np.column_stack([1 - says_N, says_N])
    biases_C = balanced_biases(own_NC, truth_N, np.array([0.9, 0.1]))  # the rule alone: above 0.1
    named_N = (np.log(own_NC) + biases_C).argmax(axis=1)
    np.testing.assert_array_equal(named_N, truth_N)
    members = [network("one", 1.5, seed=1), network("two", 1.5, seed=2)]
    said = [fold.says((0, 1), tuned=True)[1] for fold in Study(members).folds]
    of_fold_N = members[0].fold_N == 0
    other = Study([replace(own, truth_N=np.where(of_fold_N, 0, own.truth_N)) for own in members])
    np.testing.assert_array_equal(said[0], other.folds[0].says((0, 1), tuned=True)[1])
    np.testing.assert_allclose(said[0].sum(axis=1), 1)


# Rows that outlive the machine.

RECIPE = {"epochs": 1, "batch": 12}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = free_dataset(tmp_path_factory.mktemp("folds") / "small" / "data", 48)
    small.records = [
        replace(own, confirmed_by="histopathology" if number % 4 < 2 else "follow-up")
        for number, own in enumerate(small.records)
    ]
    return small.write()


def config_of(folder: Path, start: Path, **recipe: Any) -> Path:
    """Write the settings of two members in two folds that start from weights."""
    common: dict[str, Any] = {"model": "test_resnet", "preprocess": {"size": 32}, "fold": "each"}
    common["weights"] = str(start)
    members = [
        {
            **common,
            "name": name,
            "seed": seed,
            "weights": str(start),
            "recipe": {**RECIPE, **recipe},
        }
        for seed, name in enumerate(("one", "two"))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"folds": 2, "members": members, "engine": {"accelerator": "cpu", "ranks": 1}}
    file = folder / "folds.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("start") / "start.safetensors"
    torch.manual_seed(5)
    from safetensors.torch import save_file

    from skindx.models.classifier.classifier import ClassifierSettings

    network = build_classifier(ClassifierSettings(model="test_resnet"), 2)
    save_file(network.net.state_dict(), file)
    return file


def finish(home: Path, dataset: Path, training: TrainSettings) -> None:
    """Write members as a training does that ends at once, from random weights."""
    for member in training.members:
        if (home / "members" / member.name).exists():
            continue
        torch.manual_seed(member.seed + 10 * (member.fold or 0))
        classifier = build_classifier(member.network(), 2).eval()
        torch.nn.init.normal_(classifier.net.get_classifier().weight)  # answers that differ
        _, held = partition(read_manifest(dataset), member.fold, training.folds)
        said_1NC = predict_views(
            Member(member.name, classifier, member.preprocess), dataset, held, 1
        )
        state = classifier.net.state_dict()
        finished = FinishedMember(state, said_1NC[0], np.zeros(len(held), np.int64))
        history = [{"epoch": 1, "val_top1": 0.5, "pictures_per_s": 8.0}]
        save_member(home, member.name, finished, history, fingerprint(training, member, dataset))


@pytest.fixture
def settings(
    tmp_path: Path, dataset: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., bench.Config]:
    monkeypatch.setattr(bench, "finish_members", finish)

    def made(**changes: Any) -> bench.Config:
        given = {
            "dataset": dataset, "config": config_of(tmp_path, start), "out": tmp_path / "runs",
            "kept": tmp_path / "kept", "least_folds": 2,
        }  # fmt: skip
        return bench.Config(**{**given, **changes})

    return made


def files(kept: Path) -> dict[str, int]:
    return {file.stem: file.stat().st_mtime_ns for file in sorted(kept.glob("*.parquet"))}


def test_a_session_that_ends_loses_a_fold_and_the_next_goes_on_elsewhere(
    settings: Callable[..., bench.Config],
    tmp_path: Path,
    start: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[str] = []

    def until_the_third(home: Path, dataset: Path, training: TrainSettings) -> None:
        (member,) = training.members
        trained.append(member.name)
        if len(trained) == 3:
            raise SystemExit(143)
        finish(home, dataset, training)

    monkeypatch.setattr(bench, "finish_members", until_the_third)
    with pytest.raises(SystemExit):
        bench.run(settings())
    # Fold after fold, so that the members have the same ones finished.
    assert trained == ["one-fold0", "two-fold0", "one-fold1"]
    before = files(tmp_path / "kept")
    assert list(before) == ["one-fold0", "two-fold0"]
    # Elsewhere: the committed rows, weights at another place, no run.
    moved = tmp_path / "elsewhere" / "start.safetensors"
    moved.parent.mkdir()
    moved.write_bytes(start.read_bytes())
    elsewhere = settings(config=config_of(tmp_path / "elsewhere", moved), out=tmp_path / "new")
    result = bench.run(elsewhere)
    assert trained == ["one-fold0", "two-fold0", "one-fold1", "one-fold1", "two-fold1"]
    after = files(tmp_path / "kept")
    assert {name: after[name] for name in before} == before
    assert list(after) == ["one-fold0", "one-fold1", "two-fold0", "two-fold1"]
    assert result.parts["folds"] == {"finished": [0, 1], "of": 2}
    # A third call trains nothing, and files alone give the same figures.
    monkeypatch.setattr(bench, "finish_members", None)
    assert bench.run(elsewhere).figures == result.figures
    alone = elsewhere.model_copy(update={"dataset": tmp_path / "none", "missing": "leave"})
    assert bench.run(alone).figures == result.figures


def test_rows_say_what_they_are(
    settings: Callable[..., bench.Config], tmp_path: Path, dataset: Path
) -> None:
    result = bench.run(settings())
    kept = read_kept(tmp_path / "kept" / "one-fold1.parquet")
    training = TrainSettings.load(tmp_path / "folds.yaml")
    _, held = partition(read_manifest(dataset), 1, 2)
    assert sorted(kept.images_N) == sorted(Path(own.source_url).stem for own in held)
    assert kept.name == "one"
    assert set(kept.fold_N.tolist()) == {1}
    assert set(kept.views) == {1, 2}
    assert kept.confirmed_N is not None
    assert set(kept.confirmed_N.tolist()) == {"histopathology", "follow-up"}
    said = np.load(tmp_path / "runs" / "one-fold1" / "members" / "one-fold1" / "validation.npz")
    order_N = np.argsort([Path(own.source_url).stem for own in held])
    np.testing.assert_allclose(kept.views[1], np.exp(said["log"])[order_N], atol=1e-3)
    learned = len(learning(read_manifest(dataset))) - len(held)
    facts = kept.facts
    assert facts["training_s"] == round(learned / 8.0)
    assert facts["seed"] == 0
    assert facts["made_from"]["recipe"]["epochs"] == 1
    assert len(facts["settings_sha256"]) == len(facts["manifest_sha256"]) == 64
    assert {"hardware", "versions", "date"} <= set(facts)
    row = result.models["one-fold1"]
    assert (row["member"], row["fold"], row["images"]) == ("one", 1, len(held))
    assert "made_from" not in row
    # No image of calibration and test is seen.
    judged = {name for file in (tmp_path / "kept").iterdir() for name in read_kept(file).images_N}
    assert judged == {Path(own.source_url).stem for own in learning(read_manifest(dataset))}
    result.to_json(tmp_path / "folds.json")
    written = json.loads((tmp_path / "folds.json").read_text())
    assert written["figures"]["histology_ensemble_auroc"]["n"] == 2
    assert training.members[0].name == "one-fold0"


def test_rows_of_another_config_or_dataset_are_refused(
    settings: Callable[..., bench.Config], tmp_path: Path, start: Path
) -> None:
    bench.run(settings())
    before = files(tmp_path / "kept")
    longer = config_of(tmp_path / "longer", start, epochs=2)
    with pytest.raises(UserError, match=r"recipe.epochs was 1 and is 2.*`--set kept=…`"):
        bench.run(settings(config=longer))
    other = free_dataset(tmp_path / "other" / "data", 40).write()
    with pytest.raises(UserError, match=r"another dataset \(manifest\)"):
        bench.run(settings(dataset=other))
    assert files(tmp_path / "kept") == before
    # Without the dataset the folds of a member are compared with each other.
    first = read_kept(tmp_path / "kept" / "one-fold0.parquet")
    made = first.facts["made_from"]
    odd = {**made, "recipe": {**made["recipe"], "batch": 13}}
    changed = replace(first, facts={**first.facts, "made_from": odd})
    write_kept(tmp_path / "kept" / "one-fold0.parquet", changed)
    with pytest.raises(UserError, match=r"folds of one .* \(recipe.batch was 13 and is 12\)"):
        bench.run(settings(dataset=tmp_path / "none", missing="leave"))


def test_finished_folds_of_a_run_are_taken_over(
    settings: Callable[..., bench.Config], tmp_path: Path, dataset: Path, start: Path
) -> None:
    """A run of one member whose recipe is the run's own, as `skindx train` writes it."""
    training = TrainSettings.load(settings().config)
    ones = tuple(
        own.model_copy(update={"recipe": None}) for own in training.members if own.name < "p"
    )
    recipe = training.members[0].recipe
    finish(tmp_path / "ran", dataset, training.model_copy(
        update={"members": ones, "recipe": recipe}
    ))  # fmt: skip
    leave = {"missing": "leave", "imports": (tmp_path / "ran",)}
    with pytest.raises(UserError, match="has 0 folds that all members have finished"):
        bench.run(settings(**leave))
    assert list(files(tmp_path / "kept")) == ["one-fold0", "one-fold1"]
    longer = config_of(tmp_path / "longer", start, epochs=2)
    with pytest.raises(UserError, match=r"other settings .* \(recipe.epochs was 1 and is 2\)"):
        bench.run(settings(config=longer, kept=tmp_path / "new", **leave))
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="is not a run"):
        bench.run(settings(imports=(tmp_path / "nowhere",), kept=tmp_path / "new"))


def test_weights_that_answer_otherwise_than_in_training_are_refused(
    settings: Callable[..., bench.Config], tmp_path: Path, dataset: Path
) -> None:
    training = TrainSettings.load(settings().config)
    finish(tmp_path / "ran", dataset, training)
    folders = [tmp_path / "ran" / "members" / f"one-fold{fold}" for fold in (0, 1)]
    (folders[0] / "model.safetensors").write_bytes((folders[1] / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match="answer otherwise than when they were trained"):
        bench.run(settings(imports=(tmp_path / "ran",)))
    assert not (tmp_path / "kept").exists()


def test_bad_input_is_one_sentence(
    settings: Callable[..., bench.Config], tmp_path: Path, start: Path
) -> None:
    with pytest.raises(UserError, match="is no dataset; build it first"):
        bench.run(settings(dataset=tmp_path / "none"))
    raw = yaml.safe_load(config_of(tmp_path, start).read_text())
    for members, said in (
        ([raw["members"][0]], "has one member"),
        ([{**own, "fold": None} for own in raw["members"]], "has no folds; give it `fold: each`"),
        ([{**own, "weights": str(tmp_path / "gone")} for own in raw["members"]], "is not there"),
    ):
        (tmp_path / "bad.yaml").write_text(yaml.safe_dump({**raw, "members": members}))
        with pytest.raises(UserError, match=said):
            bench.run(settings(config=tmp_path / "bad.yaml"))
    assert not (tmp_path / "kept").exists()


@pytest.mark.distributed
def test_a_real_training_is_kept_and_taken_as_done(
    tmp_path: Path, dataset: Path, start: Path, settings: Callable[..., bench.Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from skindx.training.run import finish_members

    monkeypatch.setattr(bench, "finish_members", finish_members)
    own = settings()
    training = TrainSettings.load(own.config)
    first, *_ = bench.folds_of(training, own.config)
    bench.train_fold(first, training, own)
    assert list(files(tmp_path / "kept")) == ["one-fold0"]
    assert not (own.out / "one-fold0" / "bundle").exists()  # nothing is packed
    bench.check_rows([first], training, own)


def test_the_committed_config_is_two_members_in_five_folds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKINDX_REAL", "/real")
    file = ROOT / "configs" / "ham10000-folds.yaml"
    found = bench.folds_of(TrainSettings.load(file), file)
    assert len(found) == 10
    assert [own.fold for own in found[:4]] == [0, 0, 1, 1]
    assert len({own.name for own in found}) == 2
