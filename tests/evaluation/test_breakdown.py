"""Misses, sets and breakdowns, counted by hand."""

import dataclasses
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from evaluation_fakes import CLASSES, fake_class, prediction, records_of, simulate
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import (
    age_band,
    breakdowns,
    cancer_misses,
    cancer_of,
    urgent_misses,
)
from skindx.evaluation.evaluation_report import render
from skindx.evaluation.guarantee_scores import set_scores
from skindx.metrics import share_interval
from skindx.models.conformal import Conformal
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule
from skindx.taxonomy import SkinClass, load_taxonomy

NEVUS, MELANOMA, SCC, WART = np.eye(4)


def answers(labels: list[str], said: list[np.ndarray], groups: list[str] | None = None) -> Answers:
    table = [prediction(tuple(probabilities)) for probabilities in said]
    return Answers.join(records_of(labels, groups), table, CLASSES, ["only"])


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


def whole(n: int = 240) -> Answers:
    labels, table = simulate(n)
    random = np.random.default_rng(1)
    groups = [f"lesion {i // 2}" for i in range(n)]
    return dataclasses.replace(
        Answers.join(records_of(labels, groups), table, CLASSES, ["alpha", "beta"]),
        skin_types=tuple(random.choice([None, 1, 2, 6], p=[0.1, 0.5, 0.38, 0.02], size=n)),
        sources=tuple(random.choice(["clinic", "web"], size=n)),
    )


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_parts_have_figures_and_small_ones_say_so() -> None:
    answers = whole()
    skin, *_, source, _ = breakdowns(answers, draws=60)
    assert [part.value for part in skin.parts] == ["I", "II", "VI", "not known"]
    assert sum(part.n for part in skin.parts) == len(answers)
    risk_N = answers.ensemble_NC[:, 1:3].sum(axis=1)
    for part in source.parts:
        of_N = np.array(answers.sources) == part.value
        truth_N, predicted_N = answers.truth_N[of_N], answers.predicted_N[of_N]
        urgent_N = answers.urgent_C[truth_N]
        assert part.top1.value == pytest.approx((truth_N == predicted_N).mean())
        assert part.balanced_accuracy.value == pytest.approx(
            balanced_accuracy_score(truth_N, predicted_N)
        )
        assert part.urgent_auroc.value == pytest.approx(roc_auc_score(urgent_N, risk_N[of_N]))
        assert part.urgent is not None
        assert (part.urgent.n, part.urgent.missed) == (
            urgent_N.sum(),
            (urgent_N & ~answers.urgent_C[predicted_N]).sum(),
        )
        # Both rows together: wider than alone.
        alone = share_interval(truth_N == predicted_N, answers.groups_N[of_N])
        assert part.top1.low < alone.low
        assert part.top1.high > alone.high
    first, second = (part.top1.value for part in source.parts)
    assert source.top1_gap == pytest.approx(abs(first - second))
    for test in (source.top1_test, source.urgent_test):
        assert test is not None
        assert test.p > 0.05  # sources were drawn by chance
        assert test.permutations == 60
    small = next(part for part in skin.parts if part.value == "VI")
    assert small.few
    assert np.isnan(small.top1.value)
    assert small.urgent is small.others is None


def test_the_facts_of_the_manifest_and_the_threshold_are_used() -> None:
    answers = whole()
    ages = tuple([None, 20.0, 44.9, 45.0, 80.0][i % 5] for i in range(len(answers)))
    facts = {"age": ages, "sex": ("female", "male") * 120, "confirmed_by": ("", "histology") * 120}
    rule = UrgentRiskRule(
        urgent_columns=(1, 2),
        lesions={"all": 60},
        levels=(RiskLevel(miss_rate=0.05, thresholds={"all": 0.9}),),
    )
    answers = dataclasses.replace(answers, facts=facts, urgent_risk=rule)
    found = {one.attribute: one for one in breakdowns(answers, draws=20)}
    assert list(found) == ["skin type", "age", "sex", "site", "source", "confirmation"]
    assert [part.value for part in found["age"].parts] == [
        "0 to 29", "30 to 44", "45 to 59", "75 and more", "not known",
    ]  # fmt: skip
    assert [part.value for part in found["confirmation"].parts] == ["histology", "not known"]
    assert found["confirmation"].top1_test is None  # one known value
    female = found["sex"].parts[0]
    urgent_N = answers.urgent_C[answers.truth_N][::2]
    risk_N = answers.ensemble_NC[::2, 1:3].sum(axis=1)
    assert female.urgent is not None
    assert female.urgent.missed == (urgent_N & (risk_N < 0.9)).sum()
    assert female.others is not None
    assert (female.others.n, female.others.raised) == (
        (~urgent_N).sum(),
        (~urgent_N & (risk_N >= 0.9)).sum(),
    )
    assert age_band(75) == "75 and more"


def test_what_the_manifest_does_not_know_is_one_sentence() -> None:
    bare = answers(["nevus", "scc"], [NEVUS, SCC])
    notes = [breakdown.note for breakdown in breakdowns(bare, draws=10)]
    assert notes[0] == "the manifest names no skin type"
    assert len(set(notes)) == 6


def test_one_known_value_has_no_gap() -> None:
    one = dataclasses.replace(whole(100), skin_types=(3,) * 90 + (None,) * 10)
    skin = breakdowns(one, draws=10)[0]
    assert np.isnan(skin.top1_gap)
    assert [part.n for part in skin.parts] == [90, 10]


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


def test_all_groups_stand_in_one_table() -> None:
    table = ET.fromstring(
        render_page("breakdown.html.jinja", breakdowns=breakdowns(whole(), draws=20))
    )
    bodies = table.findall(".//tbody")
    assert [body.findtext(".//th") for body in bodies] == ["By skin type", "By source"]
    rows = {row[0].text: row for row in bodies[0].findall("tr")[1:]}
    assert list(rows) == ["I", "II", "VI", "not known"]
    assert rows["VI"][2].text == "too few to say"
    assert len(rows["II"]) == 7
    text = " ".join(table.itertext())
    assert "names no age, no sex, no site, no confirmation" in text


def render_page(template: str, **evaluation: object) -> str:
    e = SimpleNamespace(draws=20, **evaluation)
    return render(template, e=e, least=(30, 10, 10), interval_name="95 % interval")
