"""Misses, sets and breakdowns: hand-counted, and against fairlearn."""

import dataclasses
import importlib.util

import numpy as np
import pytest
from evaluation_fakes import CLASSES, fake_class, prediction, records_of, simulate
from fairlearn.metrics import MetricFrame
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import MISSING, breakdowns, cancer_misses, cancer_of, urgent_misses
from skindx.evaluation.guarantee_scores import set_scores
from skindx.metrics import share_interval
from skindx.models.conformal import Conformal
from skindx.taxonomy import SkinClass, load_taxonomy

NEVUS, MELANOMA, SCC, WART = np.eye(4)


def answers(labels: list[str], said: list[np.ndarray], groups: list[str] | None = None) -> Answers:
    table = [prediction(tuple(probabilities)) for probabilities in said]
    return Answers.of(records_of(labels, groups), table, CLASSES, ["only"])


def test_misses_are_counted_by_hand() -> None:
    labels = ["melanoma"] * 4 + ["scc"] * 2 + ["nevus"]
    found = answers(labels, [MELANOMA, SCC, NEVUS, NEVUS, MELANOMA, WART, MELANOMA])
    urgent = urgent_misses(found)
    assert urgent is not None
    assert (urgent.n, urgent.missed) == (6, 3)
    melanoma, scc, bcc = cancer_misses(found)
    # One melanoma was called a carcinoma: missed as a melanoma, but the answer warns.
    assert (melanoma.n, melanoma.missed, melanoma.unwarned) == (4, 3, 2)
    assert (scc.n, scc.missed, scc.unwarned) == (2, 2, 1)
    assert (bcc.classes, bcc.n) == ((), 0)
    assert np.isnan(bcc.rate.value)
    assert melanoma.rate == share_interval(np.array([1, 1, 1, 0]), range(4))


def test_images_of_one_lesion_count_once_in_a_miss_rate() -> None:
    found = answers(["melanoma"] * 4, [NEVUS] * 4, ["one"] * 4)
    assert cancer_misses(found)[0].rate == share_interval(np.ones(4), ["one"] * 4)


def test_cancers_are_found_by_code_and_without_one_by_name() -> None:
    named = {condition.key: cancer_of(condition) for condition in load_taxonomy("skin100").classes}
    assert {key for key, cancer in named.items() if cancer == "Melanoma"} == {
        "Lentigo_Maligna_Melanoma",
        "Malignant_Melanoma",
        "Melanoma",
    }
    assert {key for key, cancer in named.items() if cancer == "Squamous cell carcinoma"} == {
        "Bowen_Disease_Squamous_Cell_Carcinoma_In_Situ",
        "Squamous_Cell_Carcinoma_SCC",
    }
    assert [key for key, cancer in named.items() if cancer == "Basal cell carcinoma"] == [
        "Basal_Cell_Carcinoma"
    ]
    assert cancer_of(fake_class("x", "Basal-Cell carcinoma, nodular")) == "Basal cell carcinoma"
    assert cancer_of(SkinClass(key="x", name="Not melanoma", icd10="D22.9")) == ""


def whole(n: int = 90) -> Answers:
    labels, table = simulate(n)
    random = np.random.default_rng(1)
    groups = [f"lesion {i // 2}" for i in range(n)]
    return dataclasses.replace(
        Answers.of(records_of(labels, groups), table, CLASSES, ["alpha", "beta"]),
        skin_types=tuple(random.choice([None, 1, 2, 6], p=[0.1, 0.5, 0.38, 0.02], size=n)),
        sources=tuple(random.choice(["clinic", "web"], size=n)),
    )


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_parts_agree_with_fairlearn_and_small_ones_are_shown() -> None:
    found = whole()
    skin, source = breakdowns(found, draws=50)
    assert [part.value for part in skin.parts] == ["I", "II", "VI", "not known"]
    assert sum(part.n for part in skin.parts) == len(found)
    frame = MetricFrame(
        metrics={"top1": accuracy_score, "balanced": balanced_accuracy_score},
        y_true=found.truth_N,
        y_pred=found.predicted_N,
        sensitive_features=np.array(found.sources),
    )
    for part in source.parts:
        assert part.top1.value == pytest.approx(frame.by_group["top1"][part.value])
        assert part.balanced_accuracy.value == pytest.approx(frame.by_group["balanced"][part.value])
    assert source.top1_gap == pytest.approx(frame.difference()["top1"])
    small = next(part for part in skin.parts if part.value == "VI")
    assert 0 < small.n < 6
    assert small.top1.high - small.top1.low > 0.3


def test_what_the_manifest_does_not_know_and_a_missing_extra_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = answers(["nevus", "scc"], [NEVUS, SCC])
    assert [breakdown.note for breakdown in breakdowns(bare, draws=10)] == [
        "the manifest names no skin type",
        "the manifest names no source",
    ]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "fairlearn" else found(name)
    )
    assert [breakdown.note for breakdown in breakdowns(whole(), draws=10)] == [MISSING] * 2
    assert "pip install '.[audit]'" in MISSING


def test_one_known_value_has_no_gap() -> None:
    found = dataclasses.replace(whole(10), skin_types=(3,) * 9 + (None,))
    skin = breakdowns(found, draws=10)[0]
    assert np.isnan(skin.top1_gap)
    assert [part.n for part in skin.parts] == [9, 1]


def test_sets_are_counted_by_hand() -> None:
    found = answers(["nevus", "nevus", "melanoma", "scc"], [NEVUS, WART, MELANOMA, NEVUS])
    assert set_scores(found, draws=10) is None
    held = np.array([[1, 0, 0, 0], [0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 0, 0]], dtype=bool)
    scored = set_scores(dataclasses.replace(found, sets_NC=held, level=0.9), draws=10)
    assert scored is not None
    assert scored.coverage.value == 0.5
    assert scored.size.value == 2.0
    assert scored.single == 0.25
    urgent, routine = scored.by_urgency
    assert (urgent.name, urgent.n, urgent.coverage.value, urgent.size) == ("urgent", 2, 0.5, 2.5)
    assert (routine.name, routine.n, routine.coverage.value) == ("routine", 2, 0.5)
    assert [condition.n for condition in scored.by_class] == [2, 1, 1, 0]
    assert np.isnan(scored.by_class[3].size)


def test_sets_by_group_are_counted_by_hand() -> None:
    labels = ["melanoma", "melanoma", "scc", "scc", "nevus", "wart"]
    unsure = np.array([0.5, 0.3, 0.1, 0.1])
    found = answers(labels, [MELANOMA, unsure, NEVUS, MELANOMA, NEVUS, NEVUS])
    found = dataclasses.replace(found, skin_types=(1, 6, 6, None, 1, 6))
    rule = Conformal(
        pictures=99,
        thresholds={"all": 0.4, "skin type 6": 0.4},
        urgent={"all": 0.4, "skin type 6": 0.2},
        urgent_columns=(1, 2),
        urgent_level=0.95,
        group_pictures={"skin type 6": 60},
    )
    scored = set_scores(found.with_sets(rule), draws=10)
    assert scored is not None
    # Of scc one set holds nothing urgent, the other one melanoma, which warns as well.
    missed = scored.urgent_missed
    assert missed is not None
    assert (missed.n, missed.missed, missed.rate) == (
        4,
        1,
        share_interval(np.array([1, 0, 0, 0]), range(4)),
    )
    alarms = scored.false_alarms
    assert alarms is not None
    assert (alarms.n, alarms.raised) == (2, 0)
    eager = rule.model_copy(update={"urgent": {"all": 0.0, "skin type 6": 0.0}})
    assert set_scores(found.with_sets(eager), draws=10).false_alarms.raised == 2
    counted = {
        group.name: (group.n, group.coverage.value, group.promised) for group in scored.by_group
    }
    assert counted == {
        "urgent classes": (4, 0.5, 0.95),
        "other classes": (2, 0.5, 0.9),
        "skin type I": (2, 1.0, None),
        "skin type VI": (3, pytest.approx(1 / 3), 0.9),
    }
    # The darker threshold lets melanoma in for the second image alone.
    plain = rule.model_copy(update={"thresholds": {"all": 0.4}, "urgent": {"all": 0.4}})
    assert set_scores(found.with_sets(plain), draws=10).urgent_missed.missed == 2
    # Without a threshold of their own nothing is promised of urgent classes.
    old = Conformal(pictures=99, thresholds={"all": 0.4})
    assert {group.promised for group in set_scores(found.with_sets(old), draws=10).by_group} == {
        None
    }
