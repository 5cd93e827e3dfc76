"""`skindx diagnose` as it is typed."""

import json
from pathlib import Path

import pytest
from pdf_words import words_of
from skin_photo import skin_photo
from tiny_bundle import pack_tiny
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.errors import UserError
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.report import pdf_sheet
from skindx.imaging.photo_gates import ModalityCheck
from skindx.models.conformal import Share
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    files = [tmp_path / name for name in ("near.jpg", "wide.jpg")]
    for seed, file in enumerate(files):
        file.write_bytes(skin_photo(seed=seed))
    return [str(file) for file in files]


def typed(bundle: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["diagnose", str(bundle), *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_photos_and_facts_become_an_answer_and_a_report(
    tiny_bundle: Path, photos: list[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.pdf"
    reported = ("--age", "54", "--sex", "female", "--site", "back", "--skin-type", "5")
    said = json.loads(typed(tiny_bundle, *photos, *reported, "--json", "--pdf", str(report)))
    assert report.stat().st_mode & 0o077 == 0
    assert len(said["photos"]) == 2
    assert said["patient"]["age"] == 54
    assert (said["patient"]["site"], said["patient"]["duration"]) == ("back", None)
    assert report.read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "near.jpg",
        "report.pdf",
        "wide.jpg",
    ]


def test_the_plain_answer_says_what_to_do_both_errors_and_what_the_model_does_not_know(
    tmp_path: Path, photos: list[str]
) -> None:
    plain = pack_tiny(tmp_path / "plain")
    classes = plain.taxonomy.classes
    urgent = tuple(n for n, skin_class in enumerate(classes) if skin_class.urgency == "urgent")
    share = Share(value=0.25, low=0.2, high=0.3, pictures=400)
    rule = UrgentRiskRule(
        urgent_columns=urgent,
        lesions={"all": 57},
        levels=(RiskLevel(miss_rate=0.05, thresholds={"all": 0.0}, sent_on=share),),
    )
    bundle = pack_tiny(tmp_path / "bundle", urgent_risk=rule).path
    said, record = typed(bundle, photos[0]), json.loads(typed(bundle, photos[0], "--json"))
    lines, said = said.splitlines(), " ".join(said.split())
    whole = " ".join(typed(bundle, photos[0], "--details").split())
    assert record["next_step"]["urgency"] == "urgent"
    assert " ".join(lines).startswith(f"Next step  {record['next_step']['advice']}")
    for text in (
        record["next_step"]["because"],
        "cannot rule out any disease",
        "How often this advice is wrong was not measured.",
        f"The model knows {len(classes)} conditions and no others",
        record["notice"],
    ):
        assert said.count(text) == whole.count(text) == 1, said
    for text in ("It does not know other urgent conditions", record["source"]["digest"][:16]):
        assert (said.count(text), whole.count(text)) == (0, 1)
    assert "not at hand" not in whole  # the terminal has the figures of the record above
    assert "--details also prints" in said
    for candidate in record["candidates"]:
        assert candidate["name"] in said
    assert whole.index("Next step") < whole.index("ICD-10") < whole.index("It does not know")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--age", "200"), "'age' = 200"),
        (("--site", "moon"), "'site' = 'moon'"),
        (("--skin-type", "7"), "'skin_type' = 7"),
    ],
)
def test_a_fact_that_cannot_be_is_reported(
    tiny_bundle: Path, photos: list[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        typed(tiny_bundle, photos[0], *words)


def test_the_report_is_written_as_fhir_too(
    tiny_bundle: Path, photos: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("fhir.resources", reason="fhir.resources is not installed: extra clinic")
    report = tmp_path / "report.json"
    typed(tiny_bundle, photos[0], "--site", "back", "--fhir", str(report), "--patient-id", "MRN 7")
    assert report.stat().st_mode & 0o077 == 0
    kinds = [entry["resource"] for entry in json.loads(report.read_text())["entry"]]
    assert kinds[0]["resourceType"] == "DiagnosticReport"
    assert kinds[1]["identifier"] == [{"value": "MRN 7"}]


def test_a_patient_who_looks_named_is_told_beside_the_report(
    tiny_bundle: Path, photos: list[str], tmp_path: Path
) -> None:
    pdf = ("--pdf", str(tmp_path / "report.pdf"), "--patient-id")
    for patient, said in (("Maria Schneider", "looks like the name of a person"), ("P-017", "")):
        words = ["diagnose", str(tiny_bundle), photos[0], *pdf, patient]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0
        assert ("note: the patient" in result.stderr) == bool(said)
        assert said in result.stderr


def test_a_refused_photo_leaves_a_record_of_the_refusal_and_no_report(
    tiny_bundle: Path, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    blurred = Path(photos[0]).with_name("blurred.jpg")
    blurred.write_bytes(skin_photo(blur=9))
    reports = ("--pdf", str(tmp_path / "report.pdf"), "--fhir", str(tmp_path / "report.json"))
    with pytest.raises(Refused, match=r"^Photo 2: The photo is too blurred"):
        typed(tiny_bundle, photos[0], str(blurred), *reports)
    assert [path.name for path in tmp_path.glob("report*")] == ["report.pdf"]
    assert "The model gave no answer" in words_of((tmp_path / "report.pdf").read_bytes())


def test_the_operator_chooses_the_miss_rate(tmp_path: Path, photos: list[str]) -> None:
    """The same photo is urgent by one level and not by another."""
    plain = pack_tiny(tmp_path / "plain")
    urgent = [
        n for n, skin_class in enumerate(plain.taxonomy.classes) if skin_class.urgency == "urgent"
    ]
    risk = sum(
        candidate["probability"]
        for candidate in json.loads(typed(plain.path, photos[0], "--json"))["candidates"]
        if candidate["urgency"] == "urgent"
    )
    rule = UrgentRiskRule(
        urgent_columns=tuple(urgent),
        lesions={"all": 57},
        levels=(
            RiskLevel(miss_rate=0.02, thresholds={"all": 0.0}),
            RiskLevel(miss_rate=0.05, thresholds={"all": 1.0}),
        ),
    )
    bundle = pack_tiny(tmp_path / "bundle", urgent_risk=rule).path
    said = [
        json.loads(typed(bundle, photos[0], "--json", *words))
        for words in ((), ("--miss-rate", "0.05"), ("--miss-rate", "0.02"))
    ]
    levels = [path["urgent_risk"]["miss_rate"] for path in said]
    assert levels == [0.05, 0.05, 0.02]
    assert [path["next_step"]["urgency"] == "urgent" for path in said] == [False, False, True]
    assert said[0]["urgent_risk"]["risk"] >= risk - 1e-9  # of the five candidates that are listed
    with pytest.raises(
        UserError, match=r"miss rate of 0.1; choose one of its rates: --miss-rate 0.02, 0.05"
    ):
        typed(bundle, photos[0], "--miss-rate", "0.1")


def test_a_person_may_say_how_a_photo_was_taken(tmp_path: Path, photos: list[str]) -> None:
    """The check takes it for another: without a word it is refused, and the option is named."""
    check = ModalityCheck(kind="dermoscopic", threshold=-1e9, images=100)
    bundle = pack_tiny(tmp_path / "checked", modality=check).path
    refused = CliRunner().invoke(app, ["diagnose", str(bundle), photos[0]])
    assert isinstance(refused.exception, Refused)
    assert "add `--modality dermoscopic`" in refused.stderr
    said = json.loads(typed(bundle, photos[0], "--modality", "dermoscopic", "--json"))
    assert said["modality_said"]["photos"] == [1]
