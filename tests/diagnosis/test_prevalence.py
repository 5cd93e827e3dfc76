"""Another prevalence corrects what is shown, and nothing that was fitted."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import Skindx
from hypothesis import given
from hypothesis import strategies as st
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.diagnosis.bundle_statement import (
    bundle_version,
    measured_advice,
    mix_text,
    shown_prevalence,
)
from skindx.diagnosis.case import Case
from skindx.diagnosis.decision_texts import how_combined
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report.answer_report import print_diagnosis
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import given_prevalence, mix_of, open_bundle
from skindx.models.bundle.bundle_index import calibration_classes
from skindx.models.class_calibration import ClassCalibration
from skindx.models.combination import Prevalence, read_prevalence
from skindx.models.conformal import fit_conformal
from skindx.models.urgent_risk import fit_urgent_risk
from skindx.taxonomy import load_taxonomy
from skindx.ui.diagnosis_pool import load_bundle, worker_command
from skindx.ui.page.answer_html import result_html

ISIC9 = load_taxonomy("isic9")
COUNTS = {key: 10 + n for n, key in enumerate(ISIC9.keys)}


@pytest.fixture(scope="module")
def plain(tiny_bundle: Path) -> Predictor:
    """Return a predictor with sets, an urgent threshold and a calibration mix, without detector."""
    random, urgent_C = np.random.default_rng(0), [one.urgency == "urgent" for one in ISIC9.classes]
    rows_NC, truth_N = random.dirichlet(np.ones(9), 120), random.integers(0, 9, 120)
    fitted = {"urgent_C": np.array(urgent_C)}
    loaded = Predictor.load(tiny_bundle)
    spec = loaded.bundle.spec.model_copy(
        update={
            "conformal": fit_conformal(rows_NC, truth_N, **fitted),
            "urgent_risk": fit_urgent_risk(rows_NC, truth_N, **fitted),
            "provenance": {"calibration_images_by_class": COUNTS},
        }
    )
    return replace(loaded, bundle=replace(loaded.bundle, spec=spec), detector=None)


@pytest.fixture(scope="module")
def corrected(plain: Predictor, file: Path) -> Predictor:
    return replace(plain, prevalence=given_prevalence(plain.bundle, file))


@pytest.fixture(scope="module")
def answers(plain: Predictor, corrected: Predictor) -> tuple[CaseAnswer, CaseAnswer]:
    """Return the answers to one photo without and with another prevalence."""
    case = Case((skin_photo(),))
    return answer(plain, case), answer(corrected, case)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shares by which the last class is by far the most common."""
    path = tmp_path_factory.mktemp("file") / "clinic.yaml"
    shares = dict.fromkeys(ISIC9.keys[:-1], 0.01) | {ISIC9.keys[-1]: 0.92}
    path.write_text("\n".join(f"{key}: {share}" for key, share in shares.items()))
    return path


def test_it_changes_what_is_shown_and_nothing_that_was_fitted(
    answers: tuple[CaseAnswer, CaseAnswer],
) -> None:
    plain, other = (one.diagnosis for one in answers)
    before = {one.key: one for one in plain.candidates}
    after = {one.key: one for one in other.candidates}
    last = ISIC9.keys[-1]
    assert other.candidates[0].key == last
    assert after[last].probability > before.get(last, plain.candidates[-1]).probability
    shared = before.keys() & after.keys()
    assert {key: before[key].in_set for key in shared} == {key: after[key].in_set for key in shared}
    assert {k for k, one in before.items() if one.in_set} == {
        k for k, one in after.items() if one.in_set
    }
    assert plain.next_step == other.next_step
    assert plain.promise == other.promise
    assert plain.abstained == other.abstained
    assert plain.urgent_risk is not None
    assert other.urgent_risk is not None
    for name in ("risk", "threshold", "miss_rate", "sent_on"):
        assert getattr(plain.urgent_risk, name) == getattr(other.urgent_risk, name)


def test_the_correction_is_bayes_rule_by_hand() -> None:
    mix = Prevalence.from_shares({"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 8, "b": 0, "c": 2})
    assert mix.calibration_C == pytest.approx((9 / 13, 1 / 13, 3 / 13))
    row_C = np.array([0.6, 0.1, 0.3])
    weights = row_C * np.array([0.5 / (9 / 13), 0.3 / (1 / 13), 0.2 / (3 / 13)])
    assert mix.correct(row_C) == pytest.approx(weights / weights.sum())


def test_a_mix_is_put_on_probabilities_that_are_calibrated_by_class(
    plain: Predictor, corrected: Predictor
) -> None:
    by_class = ClassCalibration(slope=0.9, biases=tuple(np.linspace(2, -2, 9).tolist()))
    photo = skin_photo()
    before, after = (
        replace(one, ensemble=replace(one.ensemble, class_calibration=by_class))
        for one in (plain, corrected)
    )
    spec = plain.bundle.spec.model_copy(update={"class_calibration": by_class})
    shown = answer(replace(before, bundle=replace(plain.bundle, spec=spec)), Case((photo,)))
    assert "for all conditions together and for each by itself." in result_html(shown, None)
    pixels = decode(photo)
    raw_NC, p_NC = (one.ensemble.probabilities([pixels])[0] for one in (plain, before))
    np.testing.assert_allclose(p_NC, by_class.apply(np.log(raw_NC)))
    mix = corrected.prevalence
    assert mix is not None
    for predictor, expected_C in ((before, p_NC[0]), (after, mix.correct(p_NC[0]))):
        for one in answer(predictor, Case((photo,))).diagnosis.candidates:
            column = ISIC9.keys.index(one.key)
            assert one.probability == pytest.approx(expected_C[column], rel=1e-4)


@given(st.lists(st.floats(1e-4, 1), min_size=3, max_size=3), st.integers(0, 99))
def test_the_calibration_mix_itself_corrects_nothing(shares: list[float], seed: int) -> None:
    counts = dict(zip("abc", (3, 40, 7), strict=True))
    same = {key: (count + 1) / 53 for key, count in counts.items()}
    rows_NC = np.random.default_rng(seed).dirichlet(np.array(shares) + 0.1, 4)
    assert Prevalence.from_shares(same, counts).correct(rows_NC) == pytest.approx(rows_NC)


def test_every_output_says_which_mix_the_probabilities_hold_for(
    answers: tuple[CaseAnswer, CaseAnswer],
) -> None:
    from datetime import UTC, datetime

    from skindx.diagnosis.report import pdf_sheet
    from skindx.diagnosis.report.answer_report import report_pdf

    expected = (
        "hold for the mix of diseases of the calibration images, ",
        "hold for the prevalence that the operator gave, ",
    )
    for said, words in zip(answers, expected, strict=True):
        console = Console(file=io.StringIO(), width=400)
        print_diagnosis(said.diagnosis, console)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pdf_sheet, "dejavu", lambda: None)
            paper = words_of(report_pdf(said, None, datetime(2026, 1, 1, tzinfo=UTC)))
        texts = {
            "terminal": console.file.getvalue(),  # type: ignore[attr-defined]
            "page": result_html(said, None),
            "paper": paper.replace("\\(", "("),
            "JSON": said.diagnosis.model_dump_json(),
        }
        for name, text in texts.items():
            assert words in text.replace("\xa0", " "), name
        assert said.diagnosis.prevalence is not None
        assert sum(said.diagnosis.prevalence.values()) == pytest.approx(1)


def test_a_bundle_that_does_not_name_its_mix_says_so(tiny_bundle: Path, file: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    nameless: Any = SimpleNamespace(prevalence=None, calibration_mix=mix_of(bundle))
    assert "The bundle does not name the mix" in mix_text(nameless)
    assert shown_prevalence(nameless) is None
    with pytest.raises(UserError, match="does not store the number of calibration images"):
        Predictor.load(tiny_bundle, prevalence=file)


def test_the_calibration_split_names_the_mix() -> None:
    def record(n: int, label: str, split: str) -> Record:
        return Record(f"{n}", f"{n:064x}", "0" * 16, 90, 90, label, f"g{n}", split)  # type: ignore[arg-type]

    records = [record(1, "b", "calibration"), record(2, "a", "val"), record(3, "b", "calibration")]
    assert calibration_classes(records) == {"calibration_images_by_class": {"b": 2}}
    assert calibration_classes(records[1:2]) == {"calibration_images_by_class": {"a": 1}}
    assert calibration_classes([]) == {}


def test_a_mix_that_is_none_is_ignored(plain: Predictor) -> None:
    assert mix_of(plain.bundle) == COUNTS
    for wrong in (7, {"x": 3}, {ISIC9.keys[0]: True}, {ISIC9.keys[0]: -1}):
        provenance = {"calibration_images_by_class": wrong}
        spec = plain.bundle.spec.model_copy(update={"provenance": provenance})
        assert mix_of(replace(plain.bundle, spec=spec)) is None


_LINES = [f"{key}: 0.1111" for key in ISIC9.keys]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no lines|is not valid"),
        ("- 1\n- 2", "has no lines"),
        ("\n".join(_LINES[1:]), f"has no share for {ISIC9.keys[0]}"),
        ("\n".join([*_LINES, "plague: 0.1"]), "the class 'plague', which the bundle does not have"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: 0"]), "write a number above 0"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: -0.1"]), "write a number above 0"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: .nan"]), "write a number above 0"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: yes"]), "write a number above 0"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: rare"]), "write a number above 0"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: 0.9"]), "add up to 1.789, but"),
        ("\n".join([*_LINES[1:], f"{ISIC9.keys[0]}: 0.01"]), "add up to 0.89"),
        ("\n".join([*_LINES, f"{ISIC9.classes[0].name.upper()}: 0.1"]), "twice|is not valid"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "clinic.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as refused:
        read_prevalence(path, ISIC9)
    assert str(refused.value).endswith(".")
    with pytest.raises(UserError):
        read_prevalence(tmp_path / "nothing.yaml", ISIC9)


def test_the_command_line_takes_it(skindx: Skindx, tiny_bundle: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(skin_photo())
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: 1")
    code, _, errors = skindx("diagnose", str(tiny_bundle), str(photo), "--prevalence", str(bad))
    assert (code, errors.count("\n")) == (2, 1)
    assert "which the bundle does not have" in errors
    code, _, errors = skindx("serve", str(tiny_bundle), "--prevalence", str(bad), "--port", "0")
    assert (code, errors.count("\n")) == (2, 1), errors


def test_a_server_s_worker_takes_it(tiny_bundle: Path, file: Path) -> None:
    version = bundle_version(open_bundle(tiny_bundle))
    with pytest.raises(UserError, match="does not store the number of calibration images"):
        load_bundle(tiny_bundle, version, prevalence=file)
    command = worker_command(tiny_bundle, version, prevalence=file)
    assert any(str(file.resolve()) in word for word in command)


def test_the_sharpening_of_the_mean_is_told(answers: tuple[CaseAnswer, CaseAnswer]) -> None:
    diagnosis = answers[0].diagnosis
    assert diagnosis.temperature == 0.5
    assert how_combined(diagnosis).startswith("A temperature of 0.50, fitted on the validation")
    assert how_combined(diagnosis) in result_html(answers[0], None)
    assert how_combined(diagnosis.model_copy(update={"temperature": 1.0})) == ""
    assert "less sure than" in how_combined(diagnosis.model_copy(update={"temperature": 1.4}))


def test_predictive_values_stand_at_the_prevalence_that_the_operator_gave(
    plain: Predictor, corrected: Predictor
) -> None:
    rule = plain.urgent_risk
    assert rule is not None
    rates = {"urgent": {"value": 0.9, "low": 0.8, "high": 0.95}}
    others = {"urgent": {"value": 0.2, "low": 0.1, "high": 0.3}}
    metrics = {
        "urgent_risk": {"chosen": rule.level().miss_rate},
        "served": [
            {"name": "urgent classes", "n": 100, "rates": rates},
            {"name": "other classes", "n": 300, "rates": others},
        ],
    }
    urgent = [one.key for one in ISIC9.classes if one.urgency == "urgent"]
    shares = dict.fromkeys(ISIC9.keys[:-1], 0.01) | {ISIC9.keys[-1]: 0.92}
    for predictor, share in ((plain, 0.01), (corrected, sum(shares[key] for key in urgent))):
        vars(predictor)["metrics"] = metrics
        advice = measured_advice(predictor)
        del vars(predictor)["metrics"]
        assert advice is not None
        stated, own = advice.values
        assert stated.prevalence == pytest.approx(share)
        assert stated.ppv == pytest.approx(0.9 * share / (0.9 * share + 0.2 * (1 - share)))
        assert own.prevalence == 0.25
