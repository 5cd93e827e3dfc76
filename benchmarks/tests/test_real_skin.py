"""Kept predictions and the tables made from them: round trip, folds, choices that see no test."""

from pathlib import Path

import numpy as np
import pytest
from small_dataset import free_dataset

from skindx.core.errors import UserError
from skindx_bench.train import frozen_heads
from skindx_bench.train.kept_predictions import (
    TEST,
    VALIDATION,
    Kept,
    passes_of,
    read_kept,
    write_kept,
)
from skindx_bench.train.real_skin import Config, choice, ensemble_figures, run

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


def test_choices_do_not_see_the_judged_images() -> None:
    members = [kept("weak", 0.5), kept("strong", 3.0, seed=1), kept("alike", 3.0, seed=2)]
    fold = passes_of(members)[0]
    before = choice(fold)
    fold.test.members[1][:] = fold.test.members[1][::-1]
    assert choice(fold) == before
    assert set(before[0]) == {1, 2}


def test_members_of_different_kinds_or_labels_do_not_go_together() -> None:
    with pytest.raises(UserError, match="do not go together"):
        passes_of([kept("one", 1.0), kept("two", 1.0, single=True)])
    other = kept("two", 1.0)
    other.truth_N[0] = (other.truth_N[0] + 1) % 3
    with pytest.raises(UserError, match="other folds or labels"):
        passes_of([kept("one", 1.0), other])


def test_an_ensemble_of_independent_members_gains_and_one_of_copies_does_not() -> None:
    independent = ensemble_figures(passes_of([kept(f"m{n}", 1.5, seed=n) for n in range(4)]))
    low, _ = independent["ensemble_minus_better_log_loss"].spread
    assert independent["ensemble_minus_better_balanced"].spread[0] > 0
    assert low < 0
    assert independent["ensemble_minus_better_log_loss"].spread[1] < 0
    copies = ensemble_figures(passes_of([kept("m", 1.5), kept("copy", 1.5)]))
    assert copies["ensemble_minus_better_balanced"].value == 0


def test_tables_are_made_from_files_alone(tmp_path: Path) -> None:
    for number, name in enumerate(("frozen-one", "frozen-two", "trained")):
        write_kept(tmp_path / f"x-{name}.parquet", kept(name, 1.0 + number, seed=number))
    for number in range(2):
        single = kept(f"s{number}", 2.0, seed=number, single=True)
        write_kept(tmp_path / f"x-split-s{number}.parquet", single)
    result = run(Config(dataset="x", kept=tmp_path, melanoma="b"))
    assert {key.split("_")[0] for key in result.figures} == {"frozen", "folds", "split"}
    assert set(result.models) == {"frozen-one", "frozen-two", "trained", "s0", "s1"}
    assert result.models["s0"]["images"] == 100
    area = result.models["trained"]["melanoma_auroc"]
    assert 0.5 < area["low"] < area["value"] < area["high"] <= 1
    with pytest.raises(UserError, match="train the networks first"):
        run(Config(dataset="y", kept=tmp_path))


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
