import csv
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers
from skindx.metrics import Interval, Statistic, paired_interval
from skindx.taxonomy import SkinClass
from skindx_bench.harness.training import preset
from skindx_bench.train.convergence import Config, figures_of, plain_values, run
from skindx_bench.train.convergence_pairs import (
    Compared,
    Run,
    Study,
    arm_settings,
    compare_arms,
    markdown,
    measure,
    overlay,
    student_interval,
    verdict,
    write_tables,
)

TINY = {"members": [{"name": "m", "model": "test_resnet"}]}


def _answers(fold: int, wrong: Sequence[Sequence[int]]) -> Answers:
    """Eight images of two classes in four groups alike; each seed errs on its `wrong` ones."""
    truth_N = np.arange(8) % 2
    members = []
    for problem in wrong:
        said_N = truth_N.copy()
        said_N[list(problem)] ^= 1
        members.append(np.eye(2)[said_N] * 0.8 + 0.1)
    members_NMC = np.stack(members, axis=1)
    return Answers(
        classes=(SkinClass(key="a", name="a"), SkinClass(key="b", name="b")),
        members=tuple(f"seed-{seed}" for seed in range(len(wrong))),
        truth_N=truth_N,
        groups_N=np.array([f"g{fold}-{n // 2}" for n in range(8)]),
        sha256_N=np.array([f"s{fold}-{n}" for n in range(8)]),
        ensemble_NC=members_NMC.mean(axis=1),
        members_NMC=members_NMC,
        skin_types=(None,) * 8,
        sources=("",) * 8,
    )


EVEN = (0, 2, 4, 6)
"""One class in every group: half of the balanced accuracy, whatever groups are drawn."""


def _compare(arm: list[Answers], base: list[Answers], seeds: int) -> dict[str, Compared]:
    found = compare_arms(("arm", "base"), (arm, base), range(seeds), draws=400)
    return {pair.key: pair for pair in found}


def test_runs_are_paired_by_fold_and_seed() -> None:
    arm = [_answers(0, [(0,), (1, 3)]), _answers(1, [(), (0,)])]
    base = [_answers(0, [(0,), (1,)]), _answers(1, [(1,), (0, 1)])]
    # Balanced accuracy and top-1 are the same here: four images of each class.
    found = _compare(arm, base, 2)["balanced_accuracy"]
    assert found.runs_R == pytest.approx((0, -1 / 8, 1 / 8, 1 / 8))
    assert found.over_both.value == found.over_runs.value == pytest.approx(1 / 32)
    # Student, by hand: deviation sqrt(sum of squares / 3), t of 3 degrees of freedom 3.1824.
    squares = sum((step / 32) ** 2 for step in (-1, -5, 3, 3))
    half = 3.182446 * math.sqrt(squares / 3) / 2
    assert found.over_runs.low == pytest.approx(1 / 32 - half, rel=1e-5)
    assert found.over_runs.high == pytest.approx(1 / 32 + half, rel=1e-5)
    assert found.lower == min(found.over_runs.low, found.over_both.low)


def test_runs_are_drawn() -> None:
    """Groups change nothing here: two runs, half up and half down, draw a mean of 1/2, 0, -1/2."""
    found = _compare([_answers(0, [(), EVEN])], [_answers(0, [EVEN, ()])], 2)
    for pair in found.values():
        assert pair.runs_R == (0.5, -0.5)
        # Wider than the draws by what eight images cannot show.
        assert pair.over_both.value == 0
        assert -1 < pair.over_both.low < -0.5
        assert pair.over_both.high == pytest.approx(-pair.over_both.low)


def test_groups_are_drawn() -> None:
    """Seeds that all came out alike leave what resampling the images' groups leaves."""
    arm, base = _answers(0, [(0, 1)] * 3), _answers(0, [(4,)] * 3)
    found = _compare([arm], [base], 3)["top1"]
    ours, theirs = (Statistic.top_k(e.members_NMC[:, 0], e.truth_N, 1) for e in (arm, base))
    expected = paired_interval(ours, theirs, arm.groups_N, draws=400)
    assert found.over_both == expected
    assert expected.low < found.over_both.value < expected.high
    assert measure(arm, "top1", 2).value == 0.75


def test_the_same_twice_differs_by_nothing_and_all_from_none_by_all() -> None:
    same = _compare([_answers(0, [(0,), (5,)])], [_answers(0, [(0,), (5,)])], 2)["top1"]
    assert same.over_runs == Interval(0.0, 0.0, 0.0)
    # Four groups came out alike: 1 - 0.025^(1/4) of all groups may differ.
    unseen = 1 - 0.025 ** (1 / 4)
    assert (same.over_both.low, same.over_both.high) == pytest.approx((-unseen, unseen))
    every = _compare([_answers(0, [(), ()])], [_answers(0, [range(8)] * 2)], 2)["top1"]
    assert every.over_runs == Interval(1.0, 1.0, 1.0)
    assert every.over_both.low < every.over_both.value == every.over_both.high == 1


def test_arms_that_learned_nothing_show_nothing() -> None:
    """Alike to the last image, but both guess: no interval is narrower, and it means nothing."""
    guessing = [_answers(0, [EVEN, EVEN])]
    same = _compare(guessing, guessing, 2)["balanced_accuracy"]
    assert same.learned == 0
    assert not verdict(same, 3.0)
    able = [_answers(0, [(0,), (1,)])]
    assert _compare(able, able, 2)["top1"].learned == pytest.approx(3 / 8)
    # Eight images cannot rule out a loss of three points, however alike the arms are.
    compared = _compare(able, able, 2)["top1"]
    assert not verdict(compared, 3.0)
    narrow = Interval(0.0, -0.01, 0.01)
    assert verdict(dataclasses.replace(compared, over_both=narrow, over_runs=narrow), 3.0)


def test_images_are_matched_by_what_they_are() -> None:
    base = _answers(0, [(0,), (1,)])
    turned = base.some(np.arange(8)[::-1])
    assert _compare([turned], [base], 2)["top1"].runs_R == (0.0, 0.0)
    with pytest.raises(UserError, match="on different images"):
        _compare([_answers(1, [(0,), (1,)])], [base], 2)


def test_a_change_lies_over_what_all_share() -> None:
    base = {"recipe": {"epochs": 3, "schedule": {"kind": "cosine", "minimum": 0.1}}, "name": "a"}
    assert overlay(base, {}) == base
    assert overlay(base, {"recipe": {"batch": 8}, "folds": 3}) == {
        "recipe": {**base["recipe"], "batch": 8},
        "name": "a",
        "folds": 3,
    }
    # Another kind has other settings; the same kind keeps those that are not changed.
    other = {"kind": "steps", "epochs": [1]}
    assert overlay(base, {"recipe": {"schedule": other}})["recipe"]["schedule"] == other
    same = overlay(base, {"recipe": {"schedule": {"kind": "cosine"}}})
    assert same["recipe"]["schedule"] == {"kind": "cosine", "minimum": 0.1}
    assert base["recipe"]["schedule"] == {"kind": "cosine", "minimum": 0.1}


def _study(arms: Any, training: Any = TINY, **more: Any) -> Any:
    study = Study.parse({"training": training, "arms": arms, **more}, "study.yaml")
    return arm_settings(study, (0, 7), "study.yaml")


def test_an_arm_is_one_member_a_seed() -> None:
    arms = _study({"a": {}, "b": {"recipe": {"batch": 8}, "exchange": {"kind": "gtopk"}}})
    assert [member.name for member in arms["b"].members] == ["seed-0", "seed-7"]
    assert [member.seed for member in arms["b"].members] == [0, 7]
    assert arms["b"].recipe.batch == 8
    assert arms["b"].exchange.kind == "gtopk"
    assert arms["a"].exchange.kind == "dense"


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"arms": {"a": {}}}, "'arms' = .*at least 2"),
        ({"arms": {"a": {}, "B C": {}}}, "must have lower-case letters"),
        ({"arms": {"a": {}, "b": {"recipe": {"bach": 3}}}},
         "study.yaml, arm b: .*'recipe.bach'; did you mean 'batch'"),
        ({"arms": {"a": {}, "b": {"members": []}}}, "study.yaml, arm b"),
        ({"arms": {"a": {}, "b": {"members": TINY["members"] * 2}}}, "its own name"),
        ({"arms": {"a": {}, "b": {"members": [{**TINY["members"][0], "fold": 0}]}}},
         "trains one member on the folds of the study"),
        ({"arms": {"a": {}, "b": {}}, "compare": [["a", "c"]]},
         "compare names 'c', but the arms are a, b"),
        ({"arms": {"a": {}, "b": {}}, "compare": [["a", "a"]]}, "'a' against itself"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_be_is_reported(study: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as reported:
        _study(**study)
    assert "\n" not in str(reported.value)


def test_settings_of_the_bench_that_cannot_be() -> None:
    with pytest.raises(UserError, match="one run has no spread"):
        Config.parse({"seeds": [0], "use": [1]})
    with pytest.raises(UserError, match="each fold and seed once"):
        Config.parse({"seeds": [0, 0]})
    with pytest.raises(UserError, match=r"no\.yaml does not exist"):
        run(Config(config=Path("no.yaml")))


def test_the_committed_study_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKINDX_REAL", "/somewhere")
    study = Study.load(preset("convergence"))
    arms = arm_settings(study, (0, 1, 2), "convergence")
    assert len(study.pairs) >= 2
    first, *others = (arm.recipe for arm in arms.values())
    for recipe in others:
        assert recipe.epochs == first.epochs  # every arm sees as many images
        # Batch norm sees as many images at once.
        assert recipe.batch // recipe.accumulate == first.batch
    for settings in arms.values():
        momentum = getattr(settings.exchange, "momentum", 0) or settings.recipe.momentum
        assert momentum == 0.9
        assert not (settings.recipe.momentum and getattr(settings.exchange, "momentum", 0))


def _runs(arm: str, scores: list[float]) -> list[Run]:
    history = [
        {"epoch": e, "loss": 1 / e, "val_balanced": 0.1 * e, "pictures_per_s": 9.0} for e in (1, 2)
    ]
    return [
        Run(arm, fold, 0, {"balanced_accuracy": score, "top1": score}, history)
        for fold, score in enumerate(scores)
    ]


def test_tables_curves_and_the_verdict(tmp_path: Path) -> None:
    runs = {"dense": _runs("dense", [0.5, 0.7]), "topk": _runs("topk", [0.49, 0.7])}
    differences = (-0.01, 0.0)
    both = Interval(-0.005, -0.01, 0.002)
    compared = [
        Compared("topk", "dense", key, differences, student_interval(differences), both, 0.1)
        for key in ("balanced_accuracy", "top1")
    ]
    # Two runs bound little: t of one degree of freedom is 12.7.
    assert compared[0].lower == pytest.approx(-0.005 - 12.7062 * 0.005, rel=1e-4)
    assert not verdict(compared[0], 3.0)
    assert verdict(compared[0], 7.0)
    lines = markdown(runs, compared, 7.0).splitlines()
    assert lines[2] == "| dense | 2 | 60.0 ± 14.1 | 60.0 ± 14.1 | 9 |"
    assert lines[7].startswith("| topk − dense | balanced accuracy | -0.50 [-1.00, +0.20] | [-6.85")
    assert lines[7].endswith("| yes |")
    assert markdown(runs, compared, 3.0).splitlines()[7].endswith("| not shown |")
    write_tables(tmp_path, runs, compared, 3.0)
    table = list(csv.DictReader((tmp_path / "convergence.csv").read_text().splitlines()))
    assert [(row["arm"], row["fold"]) for row in table] == [
        ("dense", "0"), ("dense", "1"), ("topk", "0"), ("topk", "1"),
    ]  # fmt: skip
    assert float(table[2]["balanced_accuracy"]) == 0.49
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")
    figure = figures_of(compared)["topk_minus_dense_balanced"]
    assert (figure.value, figure.n) == (-0.5, 2)
    assert figure.spread[0] == pytest.approx(100 * compared[0].lower)


def test_what_was_found_can_be_written_as_json() -> None:
    compared = _compare([_answers(0, [(0,), (5,)])], [_answers(0, [(), (5,)])], 2)
    values = plain_values("arm", _runs("arm", [0.5, 0.6]), list(compared.values()), 3.0)
    against = json.loads(json.dumps(values))["against"]
    assert [row["figure"] for row in against] == ["balanced_accuracy", "top1"]
    assert against[0]["difference"] == pytest.approx(-1 / 16)
    assert against[0]["loses_less_than_margin"] is False
