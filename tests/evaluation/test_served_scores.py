"""What the product does as served, histology apart, and when a bundle is not useful yet."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from evaluation_fakes import CLASSES, records_of
from rich.console import Console
from test_report import ORIGIN

from skindx.diagnosis.advice_figures import measured
from skindx.evaluation.answers import Answers
from skindx.evaluation.evaluation_report import print_table, render_report
from skindx.evaluation.image_table import read_image_table, recompute, write_image_table
from skindx.evaluation.score import Evaluation, measure, score
from skindx.evaluation.served_scores import (
    modality_alone,
    refused_images,
    served_scores,
    spectrum_scores,
)
from skindx.metrics import Interval, share_interval
from skindx.models.bundle.bundle_index import CALIBRATION_CLASSES, BundleSpec
from skindx.models.bundle.model_card import model_card, not_useful_yet
from skindx.models.conformal import ALL
from skindx.models.ensemble import Prediction
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule, not_useful
from skindx.taxonomy import Taxonomy

COUNTS = {"nevus": 300, "melanoma": 12, "scc": 80, "wart": 11}
HARMLESS, MELANOMA = (0.9, 0.04, 0.04, 0.02), (0.1, 0.8, 0.05, 0.05)


def answers(
    rows: list[tuple[float, ...]], labels: list[str], ways: list[str] | None = None, **known: Any
) -> tuple[Answers, list[Prediction]]:
    p_NC = np.array(rows)
    predictions = [Prediction(p_C, p_C[None]) for p_C in p_NC]
    records = [
        replace(record, confirmed_by=way)
        for record, way in zip(records_of(labels), ways or [""] * len(labels), strict=True)
    ]
    of = Answers.join(records, predictions, CLASSES, ["only"])
    return replace(of, calibration_images=COUNTS, **known), predictions


def rule(threshold: float) -> UrgentRiskRule:
    level = RiskLevel(miss_rate=0.05, thresholds={ALL: threshold})
    return UrgentRiskRule(urgent_columns=(1, 2), lesions={ALL: 40}, levels=(level,))


def test_steps_refusals_and_abstentions_by_hand() -> None:
    """Of six images two are urgent; a refused image has no step, whatever its conclusion was."""
    given, predictions = answers(
        [MELANOMA] * 2 + [HARMLESS] * 4,
        ["melanoma", "scc", "nevus", "nevus", "wart", "wart"],
        steps=("urgent", "urgent", "urgent", "soon", "routine", "urgent"),
        abstained_N=np.array([True, True, True, False, False, True]),
        ood_N=np.array([0.5, 0.01, 0.5, 0.5, 0.5, 0.5]),
        ood_rate=0.02,
    )
    predictions[5] = replace(predictions[5], other_modality=True)
    found = score(given, draws=20, predictions=predictions)
    urgent, others, whole, alone = found.served
    assert (alone.name, alone.n, alone.steps["urgent"]) == ("other classes (modality alone)", 1, 1)
    assert (urgent.name, urgent.n, urgent.groups) == ("urgent classes", 2, 2)
    assert urgent.steps == {"urgent": 1, "soon": 0, "unknown": 0, "routine": 0, "none": 1}
    assert others.steps == {"urgent": 1, "soon": 1, "unknown": 0, "routine": 1, "none": 1}
    assert [row.abstained for row in found.served] == [1, 1, 2, 0]
    for row in found.served:
        assert sum(row.steps.values()) == row.n
        assert sum(rate.value for rate in row.rates.values()) == pytest.approx(1)
        assert all(rate.low < rate.high for rate in row.rates.values())
    assert whole.rates["none"].value == pytest.approx(2 / 6)
    assert served_scores(replace(given, steps=None), np.zeros(6, dtype=bool)) == ()


ASKED = [  # label, next step, answers, site; the second is refused
    ("melanoma", "soon", "grew=yes itches=yes", "back"),
    ("scc", "soon", "grew=yes large=yes", ""),
    ("melanoma", "urgent", "grew=no", ""),
    ("melanoma", "soon", "", ""),
    ("nevus", "routine", "grew=yes bleeds=yes", ""),
    ("nevus", "urgent", "itches=no", ""),
    ("nevus", "soon", "grew=yes itches=yes", "nail"),
    ("wart", "soon", "changed=yes", ""),  # no item of the checklist
]


def test_both_errors_with_and_without_the_questions_by_hand(tmp_path: Path) -> None:
    labels, steps, said, sites = (list(column) for column in zip(*ASKED, strict=True))
    records = [
        replace(record, answers=one, site=site, group=str(number))
        for number, (record, one, site) in enumerate(
            zip(records_of(labels), said, sites, strict=True)
        )
    ]
    p_NC = np.array([HARMLESS] * 8)
    predictions = [Prediction(p_C, p_C[None], other_modality=False) for p_C in p_NC]
    predictions[1] = replace(predictions[1], other_modality=True)
    given = replace(
        Answers.join(records, predictions, CLASSES, ["only"]),
        steps=tuple(steps),
        abstained_N=np.zeros(8, dtype=bool),
        calibration_images=COUNTS,
    )
    found = score(given, draws=20, predictions=predictions)
    rows = {row.name: row for row in found.served}
    alone, both = rows["urgent classes with answers"], rows["urgent classes by the checklist too"]
    assert (alone.n, both.n) == (3, 3)
    assert (alone.steps["urgent"], alone.steps["none"]) == (1, 1)
    assert (both.steps["urgent"], both.steps["none"]) == (3, 0)  # none of 3 missed, before 2 of 3
    others, raised = rows["other classes with answers"], rows["other classes by the checklist too"]
    assert (others.n, raised.n) == (3, 3)
    assert (others.steps["urgent"], raised.steps["urgent"]) == (1, 2)
    for row in (alone, both, others, raised):
        rate = row.rates["urgent"]
        assert rate.value == pytest.approx(row.steps["urgent"] / 3)
        assert rate.low <= rate.value <= rate.high
        assert rate.low < rate.high
    for row, called in ((alone, [0, 0, 1]), (both, [1, 1, 1]), (raised, [1, 1, 0])):
        wanted = share_interval(np.array(called, dtype=bool), ["0", "1", "2"])
        assert row.rates["urgent"] == wanted
    console = Console(file=io.StringIO(), width=300)
    print_table(found, console)
    assert "other classes by the checklist too: 3 images" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "Images with answers are those" in render_report(found, ORIGIN)
    write_image_table(tmp_path, records, predictions, given)
    again, _, read = read_image_table(tmp_path)
    assert [record.answers for record in again] == said
    alone_N = modality_alone(read, predictions)
    assert served_scores(read, refused_images(read, predictions), alone_N) == found.served


def test_the_majority_is_the_commonest_class() -> None:
    given, _ = answers([HARMLESS] * 5, ["wart", "nevus", "wart", "wart", "scc"])
    found = score(given, draws=20).majority
    assert (found.name, found.n, found.top1.value) == ("Common wart", 3, 0.6)


def test_easy_images_stand_apart_from_histology() -> None:
    """The whole looks fine, since most of it is nevi that nobody excised."""
    hard, easy = ["melanoma", "nevus"] * 20, ["nevus"] * 160
    rows = [MELANOMA, MELANOMA] * 20 + [HARMLESS] * 160
    steps = ("urgent",) * 40 + ("routine",) * 160
    ways = ["histopathology"] * 40 + ["follow-up"] * 160
    given, _ = answers(rows, hard + easy, ways, steps=steps)
    histology, other, whole = spectrum_scores(given, np.zeros(200, dtype=bool), draws=20)
    assert [part.name for part in (histology, other, whole)] == [
        "histology", "follow-up and other ways", "all",
    ]  # fmt: skip
    assert [part.top1.value for part in (histology, other, whole)] == [0.5, 1.0, 0.9]
    assert histology.others
    assert whole.others
    assert (histology.others.raised, histology.others.n) == (20, 20)
    assert whole.others.rate.value == pytest.approx(20 / 180)
    assert histology.auroc.value < whole.auroc.value
    assert other.urgent is None
    assert np.isnan(other.urgent_auroc.value)
    few = [*["histology"] * 9, *[""] * 191]
    for known in (few, ["histology"] * 200, [""] * 200):
        again, _ = answers(rows, hard + easy, known, steps=steps)
        assert spectrum_scores(again, np.zeros(200, dtype=bool), draws=20) == ()


LABELS = ["melanoma"] * 20 + ["nevus"] * 80
GOOD = [MELANOMA] * 20 + [HARMLESS] * 80
CASES: dict[str, tuple[list[tuple[float, ...]], dict[str, Any], str]] = {
    "calls everybody urgent": (
        GOOD,
        {"steps": ("urgent",) * 100},
        r"calls 100\.0 % of the images without an urgent class urgent \(95 % interval 95",
    ),
    "every class in most sets": (
        GOOD,
        {"sets_NC": np.repeat([[True], [False]], [60, 40], axis=0) | np.eye(4, dtype=bool)[0]},
        r"puts every class into 60\.0 % of its sets \(95 % interval 49",
    ),
    "not better than referring everyone": (
        [HARMLESS] * 20 + [MELANOMA] * 20 + [HARMLESS] * 60,
        {"urgent_risk": rule(0.1)},
        r"worth no more than referring everyone, with a net benefit of −0\.133 per image ",
    ),
    "good": (GOOD, {"urgent_risk": rule(0.3)}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_useful_yet_says_why(case: str) -> None:
    rows, known, said = CASES[case]
    good: dict[str, Any] = {
        "steps": ("urgent",) * 20 + ("routine",) * 80,
        "level": 0.9,
        "sets_NC": np.eye(4, dtype=bool)[[1] * 20 + [0] * 80],
    }
    given, predictions = answers(rows, LABELS, **(good | known))
    found = score(given, draws=50, predictions=predictions)
    if not said:
        assert found.not_useful == ()
        return
    reason, cause = found.not_useful
    assert re.search(said, reason)
    named = "Common wart has 11 calibration" if "class" in case else "Melanoma has "
    assert cause.startswith(named)
    html = render_report(found, ORIGIN)
    ET.fromstring(html)
    text = " ".join(" ".join(ET.fromstring(html).itertext()).split()).replace("\xa0", " ")
    notice = "This bundle is not useful yet. " + " ".join(found.not_useful)
    assert notice in text
    assert text.index(notice) < text.index("What it does, as served") < text.index("Top-1")
    console = Console(width=400, file=io.StringIO(), color_system=None)
    print_table(found, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith(notice)


def test_net_benefit_over_referring_everyone_by_hand() -> None:
    """At 0.1 a spared image is worth 1/9, a missed one costs 1: (60 / 9 - 20) / 100."""
    given, _ = answers(CASES["not better than referring everyone"][0], LABELS)
    found = score(replace(given, urgent_risk=rule(0.1)), draws=20)
    over = found.questions[0].operating.over_refer_all
    assert over is not None
    assert over.value == pytest.approx((60 / 9 - 20) / 100)
    assert score(given, draws=20).questions[0].operating.over_refer_all is None


def rate(value: float) -> Interval:
    return Interval(value, value - 0.01, value + 0.01)


def test_the_class_that_is_named_is_the_urgent_one_with_too_few_images() -> None:
    images, half = {"Wart": 3, "Melanoma": 58, "Nevus": 900}, rate(0.6)
    (_, cause) = not_useful(others_urgent=half, images=images, urgent=["Melanoma"])
    assert cause == ("Melanoma has 58 calibration images, and 59 or more are needed.")
    assert not_useful(others_urgent=half, images=images)[1].startswith(
        "Wart has 3 calibration images"
    )
    enough = not_useful(others_urgent=half, images={"Wart": 59}, urgent=["Wart"])[1]
    assert enough.startswith("Every class has at least 59 calibration images")
    assert not_useful(others_urgent=rate(0.5), images=images) == ()
    assert not_useful(images=images) == ()
    assert len(not_useful(others_urgent=half)) == 1


@pytest.fixture(scope="module")
def whole(evaluation: Path) -> Evaluation:
    records, predictions, given = read_image_table(evaluation)
    return measure(records, predictions, given, draws=20)


def test_the_report_counts_lesions_beside_images_and_is_well_formed(whole: Evaluation) -> None:
    tree = ET.fromstring(render_report(whole, ORIGIN))
    text = " ".join(" ".join(tree.itertext()).split()).replace("\xa0", " ")
    for one in whole.classes:
        if one.n:
            assert f"{one.name} {one.n} ({one.groups})" in text
    assert "Histology 80 (80) " in text
    assert f"always naming {whole.majority.name}: " in text
    assert "Observed over expected" in text
    assert all(one.groups <= one.n for one in whole.classes)


def _card(evaluation: Path, metrics: dict[str, Any] | None, **spec: Any) -> str:
    settings = json.loads((evaluation / "predictions.json").read_text())
    bundle = BundleSpec.model_validate_json((evaluation / "bundle/bundle.json").read_text())
    taxonomy = Taxonomy.model_validate({"name": "t", "title": "T", "classes": settings["classes"]})
    return model_card(bundle.model_copy(update=spec), taxonomy, metrics)


def _older(value: Any) -> Any:
    """Return metrics without what this version added."""
    new = {
        "not_useful", "served", "spectrum", "majority", "groups", "observed_over_expected", "gains",
        "over_refer_all", "every_class", "log_loss", "classwise_calibration_error", "other_groups",
        "balanced_rule_top1", "balanced_rule_accuracy",
    }  # fmt: skip
    if isinstance(value, dict):
        return {key: _older(item) for key, item in value.items() if key not in new}
    return [_older(item) for item in value] if isinstance(value, list) else value


def test_a_card_is_made_of_older_figures_too(evaluation: Path) -> None:
    metrics = json.loads((evaluation / "metrics.json").read_text())
    card = _card(evaluation, metrics)
    assert "| histology | 80 (80) | " in card
    assert "| urgent classes | 76 (65) | " in card
    assert "- urgent, observed over expected: 1.097 [" in card
    assert "not useful yet" not in card
    older = _older(metrics) | {"groups": metrics["groups"]}
    plain = _card(evaluation, older)
    assert "observed over expected" not in plain.split("## Measured")[1].split("| class |")[0]
    assert "| Melanoma | 76 | – | 0.947 [" in plain
    assert "as served" not in plain
    bad = _card(evaluation, metrics | {"not_useful": ["It calls <b> all urgent."]})
    head = bad.partition("## ")[0]
    assert "**This bundle is not useful yet.** It calls &lt;b> all urgent." in head


def test_what_an_older_version_printed_in_another_way_is_no_difference(
    evaluation: Path, tmp_path: Path
) -> None:
    for name in ("metrics.json", "predictions.csv", "predictions.json"):
        (tmp_path / name).write_bytes((evaluation / name).read_bytes())
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    older = _older(metrics) | {"groups": metrics["groups"]}
    older["difference"] = {"member": "beta", "top1": {"value": 0.5, "low": 0.4, "high": 0.6}}
    (tmp_path / "metrics.json").write_text(json.dumps(older))
    settings = json.loads((tmp_path / "predictions.json").read_text())
    settings = {k: v for k, v in settings.items() if k not in ("mix", "calibration_images")}
    (tmp_path / "predictions.json").write_text(json.dumps(settings))
    assert recompute(tmp_path).differing == {}


def test_a_trained_bundle_is_judged_by_its_calibration_images(evaluation: Path) -> None:
    spec = BundleSpec.model_validate_json((evaluation / "bundle/bundle.json").read_text())
    sent = {"value": 0.8, "low": 0.7, "high": 0.9, "pictures": 50}
    level = RiskLevel.model_validate(
        {"miss_rate": 0.05, "thresholds": {ALL: 0.01}, "sent_on": sent}
    )
    tight = rule(0.5).model_copy(update={"levels": (level,)})
    known = {"urgent_risk": tight, "provenance": {CALIBRATION_CLASSES: COUNTS}}
    reasons = not_useful_yet(spec.model_copy(update=known), CLASSES)
    assert "80.0 % of the images" in reasons[0]
    assert reasons[1].startswith("Melanoma has 12 calibration images")
    assert not_useful_yet(spec, CLASSES) == ()
    # What was measured counts for more than the calibration images.
    assert not_useful_yet(spec.model_copy(update=known), CLASSES, {"not_useful": []}) == ()


def test_the_page_says_how_often_what_it_calls_ten_percent_was_there() -> None:
    over = {"value": 1.33, "low": 1.18, "high": 1.5}
    observed = {"value": 0.2, "low": 0.15, "high": 0.25}
    band = {"low": 0.05, "high": 0.2, "said": 0.1, "n": 90, "observed": observed}
    metrics: dict[str, Any] = {
        "ensemble": {"top1": {"value": 0.8}},
        "questions": [{"key": "urgent_risk", "observed_over_expected": over, "band": band}],
    }
    assert measured(metrics).endswith(
        "There were 1.33 times as many urgent conditions as the risks predict (95 % interval "
        "1.18 to 1.50). Where the risk was 5 % to 20 %, it was 10 % on average, and 20.0 % (95 % "
        "interval 15.0 to 25.0 %, 90 images) were urgent."
    )
    for wrong in ({}, {"value": None, "low": 0, "high": 1}, {"value": 1.0, "low": None, "high": 2}):
        metrics["questions"] = [{"key": "urgent_risk", "observed_over_expected": wrong}]
        assert "common" not in measured(metrics)
