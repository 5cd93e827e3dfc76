"""Kept predictions and the tables made from them: round trip, folds, choices that see no test."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_dataset import free_dataset

from skindx.core.errors import UserError
from skindx_bench.train import frozen_heads
from skindx_bench.train.ensemble_gains import (
    Fold,
    calibration_figures,
    ensemble_figures,
    members_of,
)
from skindx_bench.train.kept_predictions import (
    TEST,
    VALIDATION,
    Kept,
    passes_of,
    read_kept,
    write_kept,
)
from skindx_bench.train.real_skin import Config, run

CLASSES = ("a", "b", "c")


def kept(name: str, skill: float, *, seed: int = 0, folds: int = 3, single: bool = False) -> Kept:
    """A network that knows `skill` of the truth, on 300 images of 150 groups."""
    truth_N = np.random.default_rng(7).integers(3, size=300)
    rng = np.random.default_rng(seed)
    score_NC = skill * np.eye(3)[truth_N] + rng.gumbel(size=(300, 3))
    own_NC = np.exp(score_NC) / np.exp(score_NC).sum(axis=1, keepdims=True)
    groups_N = np.arange(300) // 2
    fold_N = groups_N % folds
    return Kept(
        name,
        CLASSES,
        np.array([f"image-{n:03d}" for n in range(300)]),
        groups_N.astype(str),
        truth_N.astype(np.intp),
        np.where(fold_N == 0, TEST, VALIDATION) if single else fold_N,
        {1: own_NC},
        {"flops": 10, "model": name},
    )


def test_a_file_keeps_what_tables_need(tmp_path: Path) -> None:
    first = kept("one", 1.0)
    write_kept(tmp_path / "x-one.parquet", first)
    again = read_kept(tmp_path / "x-one.parquet")
    assert again.name == "one"
    assert again.classes == CLASSES
    assert again.facts == first.facts
    np.testing.assert_array_equal(again.truth_N, first.truth_N)
    np.testing.assert_array_equal(again.fold_N, first.fold_N)
    np.testing.assert_allclose(again.views[1], first.views[1], rtol=1e-3)
    np.testing.assert_allclose(again.views[1].sum(axis=1), 1)


def test_a_sure_answer_stays_sure(tmp_path: Path) -> None:
    sure = kept("one", 1.0)
    sure.views[1][:] = np.eye(3)[sure.truth_N]
    write_kept(tmp_path / "x-one.parquet", sure)
    np.testing.assert_allclose(
        read_kept(tmp_path / "x-one.parquet").views[1], sure.views[1], atol=1e-9
    )


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x-one.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match="holds no kept predictions"):
        read_kept(tmp_path / "x-one.parquet")


def test_out_of_fold_the_other_folds_choose_and_every_image_is_judged_once() -> None:
    folds = passes_of([kept("one", 1.0), kept("two", 1.0, seed=1)])
    assert len(folds) == 3
    assert sum(len(fold.test.truth_N) for fold in folds) == 300
    for fold in folds:
        assert not set(fold.test.groups_N) & set(fold.validation.groups_N)


def folds_of(*members: Kept) -> list[Fold]:
    return [Fold(passes) for passes in passes_of(members)]


def test_choices_do_not_see_the_judged_images() -> None:
    members = [kept("weak", 0.5), kept("strong", 3.0, seed=1), kept("alike", 3.0, seed=2)]
    passes = passes_of(members)[0]

    def chosen() -> tuple[object, object]:
        fold = Fold(passes)
        return fold.members, fold.choose("balanced_accuracy", {"a": (0, 1), "b": (1, 1)})

    before = chosen()
    passes.test.members[1][:] = passes.test.members[1][::-1]
    assert chosen() == before
    assert set(before[0]) == {1, 2}  # type: ignore[call-overload]


def test_calibration_learns_from_the_images_that_choose_alone() -> None:
    """A class that the networks name too rarely, by 2 nats, has its share after the calibration."""
    skewed = kept("skewed", 2.0, folds=2)
    skewed.views[1][:, 1] *= np.exp(-2)
    skewed.views[1][:] /= skewed.views[1].sum(axis=1, keepdims=True)
    (one, other) = folds_of(skewed)
    figures = calibration_figures([one, other], 1)
    assert figures["calibration_before_melanoma"].value > 1.4
    assert figures["calibration_after_melanoma"].value == pytest.approx(1, abs=0.1)
    for key in ("log_loss", "classwise_calibration_error"):
        before, after = (figures[f"calibration_{when}_{key}"] for when in ("before", "after"))
        assert after.value < before.value
        assert after.spread[0] < after.spread[1]
    # Judged images of another truth change no calibration.
    (again, _) = folds_of(skewed)
    again.passes.test.truth_N[:] = (again.passes.test.truth_N + 1) % 3
    np.testing.assert_array_equal(again.says((0,))[1], one.says((0,))[1])


def test_the_better_member_is_that_of_the_compared_figure_or_each() -> None:
    members = [kept("weak", 0.5), kept("strong", 3.0, seed=1), kept("alike", 3.0, seed=1)]
    figures, part = ensemble_figures(folds_of(*members[:2]))
    # A single strong member is the ensemble, and its own better member for certain.
    assert part["ensembles"] == {"strong": 3}
    assert part["choices"]["better"]["top1"] == {"best": {"strong": 3}, "share": 1.0, "sure": True}
    assert figures["ensemble_minus_better_top1"].value == 0
    # Equal members share every draw: chance chooses, so the gain over each stands.
    pair = [kept("one", 1.5, seed=1), kept("two", 1.5, seed=2)]
    figures, part = ensemble_figures(folds_of(*pair))
    assert part["ensembles"] == {"one + two": 3}
    unsure = [key for key, own in part["choices"]["better"].items() if not own["sure"]]
    assert unsure
    for key in unsure:
        assert f"better_{key}" not in figures
        assert {f"ensemble_minus_{name}_{key}" for name in ("one", "two")} <= set(figures)
        gains = [figures[f"ensemble_minus_{name}_{key}"].value for name in ("one", "two")]
        least = max(gains) if key == "log_loss" else min(gains)
        assert figures[f"least_all_{key}"].value == least


def test_one_network_of_its_cost_has_its_cost_or_is_absent() -> None:
    pair = [kept("one", 1.5, seed=1), kept("two", 1.5, seed=2)]
    _, part = ensemble_figures(folds_of(*pair))
    assert "same_cost" not in part["choices"]
    assert part["cost"] == {}
    several = [replace(own, views={1: own.views[1], 2: own.views[1]}) for own in pair]
    figures, part = ensemble_figures(folds_of(*several))
    assert part["cost"] == {"one in 2 views": 1.0, "two in 2 views": 1.0}
    assert set(part["choices"]["same_cost"]["auroc"]["best"]) <= set(part["cost"])
    assert "least_views_auroc" in figures


def test_gains_are_tried_on_a_subset() -> None:
    folds = folds_of(kept("one", 1.5, seed=1), kept("two", 1.5, seed=2))
    some_N = np.arange(300) < 150
    figures, part = ensemble_figures(folds, some_N)
    assert part["subset"] == 150
    whole, _ = ensemble_figures(folds, np.ones(300, dtype=bool))
    assert whole["least_subset_top1"] == whole["least_all_top1"] == figures["least_all_top1"]
    assert figures["least_subset_top1"] != figures["least_all_top1"]
    assert members_of(folds, 1) == {"one": (0, 1), "two": (1, 1)}


def test_members_of_different_kinds_or_labels_do_not_go_together() -> None:
    with pytest.raises(UserError, match="do not go together"):
        passes_of([kept("one", 1.0), kept("two", 1.0, single=True)])
    other = kept("two", 1.0)
    other.truth_N[0] = (other.truth_N[0] + 1) % 3
    with pytest.raises(UserError, match="other folds or labels"):
        passes_of([kept("one", 1.0), other])


def test_an_ensemble_of_independent_members_gains_and_one_of_copies_does_not() -> None:
    independent, _ = ensemble_figures(folds_of(*(kept(f"m{n}", 1.5, seed=n) for n in range(4))))
    assert independent["least_all_balanced_accuracy"].spread[0] > 0
    assert independent["least_all_log_loss"].spread[1] < 0
    copies, _ = ensemble_figures(folds_of(kept("m", 1.5), kept("copy", 1.5)))
    assert copies["least_all_balanced_accuracy"].value == 0


def test_tables_are_made_from_files_alone(tmp_path: Path) -> None:
    for number, name in enumerate(("frozen-one", "frozen-two", "trained")):
        write_kept(tmp_path / f"x-{name}.parquet", kept(name, 1.0 + number, seed=number))
    for number in range(2):
        single = kept(f"s{number}", 2.0, seed=number, single=True)
        write_kept(tmp_path / f"x-split-s{number}.parquet", single)
    result = run(Config(dataset="x", kept=tmp_path, melanoma="b"))
    assert {key.split("_")[0] for key in result.figures} == {"frozen", "folds", "split"}
    assert set(result.parts) == {"frozen", "folds", "split", "speed"}
    assert set(result.models) == {"frozen-one", "frozen-two", "trained", "s0", "s1"}
    assert result.models["s0"]["images"] == 100
    area = result.models["trained"]["melanoma_auroc"]
    assert 0.5 < area["low"] < area["value"] < area["high"] <= 1
    with pytest.raises(UserError, match="train the networks first"):
        run(Config(dataset="y", kept=tmp_path))


def test_speeds_of_before_are_taken_over_with_their_machine(tmp_path: Path) -> None:
    for number in range(2):
        own = kept(f"s{number}", 2.0, seed=number, single=True)
        own = replace(own, facts={**own.facts, "size": 64})
        write_kept(tmp_path / f"x-split-s{number}.parquet", own)
    speed = {"value": 9.0, "low": 8.0, "high": 10.0}
    before = {
        "date": "2026-01-01", "hardware": {"cpu": "old"}, "versions": {},
        "models": {"s0": {"model": "s0", "size": 64, "images_per_s": speed}},
    }  # fmt: skip
    (tmp_path / "before.json").write_text(json.dumps(before))
    settings = Config(dataset="x", kept=tmp_path, melanoma="", speeds=tmp_path / "before.json")
    result = run(settings)
    assert result.models["s0"]["images_per_s"] == speed
    assert result.models["s1"]["images_per_s"] is None
    assert result.parts["speed"]["hardware"] == {"cpu": "old"}
    result.to_json(tmp_path / "again.json")
    again = run(settings.model_copy(update={"speeds": tmp_path / "again.json"}))
    assert again.parts["speed"] == result.parts["speed"]


def test_heads_judge_the_fold_that_they_did_not_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_dataset(tmp_path / "small" / "data", 48).write()
    settings = frozen_heads.Config(
        dataset=tmp_path / "small" / "data",
        heads=("random-32",),
        folds=2,
        out=tmp_path / "features",
        kept=tmp_path / "kept",
    )
    learned: list[set[int]] = []
    fold = frozen_heads.calibrated_fold

    def watched(features_ND, truth_N, parts_N, classes):  # type: ignore[no-untyped-def]
        learned.append(set(np.flatnonzero((parts_N != "test") & (parts_N != "")).tolist()))
        return fold(features_ND, truth_N, parts_N, classes)

    monkeypatch.setattr(frozen_heads, "calibrated_fold", watched)
    result = frozen_heads.run(settings)
    assert set(result.figures) == {"random-32_balanced"}
    kept = read_kept(tmp_path / "kept" / "small-frozen-random-32.parquet")
    assert sorted(set(kept.fold_N.tolist())) == [0, 1]
    assert len(learned) == 2
    assert learned[0] | learned[1] == set(range(48))
    assert len(learned[0] & learned[1]) == 0
    assert kept.flops > 0
    assert set(kept.views) == {1, 2}
    assert np.abs(kept.views[2] - kept.views[1]).max() > 0
    # A second call reads the file and computes nothing.
    monkeypatch.setattr(frozen_heads, "out_of_fold", None)
    assert frozen_heads.run(settings).figures == result.figures
