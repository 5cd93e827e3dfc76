"""An answer as a DICOM structured report, and the photos that are wrapped for it."""

import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clinical_answers import WHEN, answered, diagnosed
from painted_answers import jpeg, plain
from PIL import Image

from skindx.clinic.report_files import ReportFiles, dicom_files, subject_of
from skindx.clinic.source_photos import Named, check_identity, identity_of, wrap_photo
from skindx.clinic.structured_report import structured_report
from skindx.core.errors import UserError
from skindx.diagnosis.case import Patient
from skindx.diagnosis.filing import Filing, RecordedDiagnosis
from skindx.diagnosis.record import Diagnosis, notice
from skindx.imaging.decode import decode, decode_stored_jpeg
from skindx.imaging.dicom import can_read_dicom, read_dicom
from skindx.imaging.dicom_facts import DicomFacts, DicomIdentity
from skindx.taxonomy.lexicon import Site
from skindx.texts import catalogue

pytest.importorskip("highdicom", reason="highdicom is not installed: extra clinic")
if not can_read_dicom():
    pytest.skip("the libraries that read DICOM are not installed", allow_module_level=True)

JANE = Named("MRN-1", "1.2.826.0.1.3680043.1")
HERS = DicomIdentity(patient_id=JANE.patient_id, study_uid=JANE.study_uid)
OLD = DicomFacts(
    "dermoscopy",
    "DMS",
    640,
    480,
    site="back",
    region="Skin of upper back",
    region_code="SCT:699893008",
    laterality="left",
    identity=DicomIdentity(
        patient_id="4711",
        patient_name="Müller^Jürgen",
        birth_date="19700102",
        sex="M",
        study_uid="1.2.3",
        series_uid="1.2.3.4",
        instance_uid="1.2.3.4.5",
        class_uid="1.2.840.10008.5.1.4.1.1.77.1.7",
        study_date="20261126",
        study_time="101500",
        study_id="S1",
        accession_number="A1",
    ),
)


def report_of(diagnosis: Diagnosis, facts: DicomFacts = OLD) -> Any:
    from pydicom import dcmread

    from skindx.clinic.structured_report import structured_report

    photos = [facts] * len(diagnosis.photos)
    return dcmread(io.BytesIO(structured_report(diagnosis, photos, None, WHEN)))


def items(report: Any, name: str) -> list[Any]:
    """Return the content items of a name, wherever they stand."""
    found = []
    waiting = [report]
    while waiting:
        item = waiting.pop(0)
        waiting += item.get("ContentSequence", [])
        names = item.get("ConceptNameCodeSequence", [])
        found += [item] if names and names[0].CodeMeaning == name else []
    return found


ACCEPTED = {
    r"Unrecognized defined term = <99SKINDX>": "our scheme for what no public one has",
    r"would be needed to build DICOMDIR": "when a wrapped photo was taken is not known",
    r"/Laterality\(0020,0060\)> - is only permitted to be empty": "nor is its side",
}
"""All that dciodvfy may warn of, and why it stays."""


def checked(tool: str, file: Path, *options: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not there: `apt install dicom3tools dcmtk` lets this test run")
    done = subprocess.run(
        [tool, *options, file], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout + done.stderr


def test_public_tools_read_every_file_and_find_no_error(tmp_path: Path) -> None:
    files = ReportFiles(dicom_sr=tmp_path / "sr.dcm", named=JANE)
    answer = answered(photos=2)
    photos = [jpeg(640, 480), _encoded("PNG")]
    files.check(photos)
    written = files.write(answer.diagnosis, photos, None)
    names = ["sr-photo-1.dcm", "sr-photo-2.dcm", "sr.dcm"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert sorted(file.name for file in written) == names
    for file in written:
        assert file.stat().st_mode & 0o077 == 0
        lines = checked("dciodvfy", file, "-new").splitlines()
        others = [line for line in lines if not any(re.search(one, line) for one in ACCEPTED)]
        assert others in (["VLPhotographicImage"], ["ComprehensiveSR"])
    text = checked("dsrdump", tmp_path / "sr.dcm", "+Pl")
    for part in (notice(), catalogue.text("cannot_rule_out"),
                 'NUM:(,,"Probability")="46.0"', "(254701007,SCT,",
                 "(C44.91,I10C,", "bundle digest SHA-256 " + "cd" * 32,
                 'NUM:(,,"urgent conditions missed by the advice, test images")="4.0"',
                 'NUM:(,,"others called urgent by the advice, test images")="30.0"'):  # fmt: skip
        assert part in text
    assert text.index(notice()) < text.index('"Probability"')


def test_the_report_is_of_the_photos_patient_and_study_and_refers_to_them() -> None:
    report = report_of(diagnosed())
    identity = OLD.identity
    assert (report.PatientID, str(report.PatientName)) == ("4711", "Müller^Jürgen")
    assert (report.StudyInstanceUID, report.StudyDate) == ("1.2.3", "20261126")
    assert (report.PatientBirthDate, report.AccessionNumber) == ("19700102", "A1")
    assert (report.PreliminaryFlag, report.VerificationFlag) == ("PRELIMINARY", "UNVERIFIED")
    (study,) = report.CurrentRequestedProcedureEvidenceSequence
    (series,) = study.ReferencedSeriesSequence
    (image,) = series.ReferencedSOPSequence
    assert (study.StudyInstanceUID, series.SeriesInstanceUID) == ("1.2.3", "1.2.3.4")
    assert image.ReferencedSOPInstanceUID == identity.instance_uid
    sites = items(report, "Finding Site")
    assert {site.ConceptCodeSequence[0].CodeValue for site in sites} == {"699893008"}
    (side,) = items(sites[0], "Laterality")
    assert side.ConceptCodeSequence[0].CodeMeaning == "Left"
    given = report_of(diagnosed().model_copy(update={"patient": Patient(site="arm")}))
    (first, *_) = items(given, "Finding Site")
    assert first.ConceptCodeSequence[0].CodeValue == "371311000"
    assert given.SOPInstanceUID != report.SOPInstanceUID
    right = Patient(site="nail", laterality="right")
    (first, *_) = items(
        report_of(diagnosed().model_copy(update={"patient": right})), "Finding Site"
    )
    assert first.ConceptCodeSequence[0].CodeMeaning == "Nail unit structure"
    (side,) = items(first, "Laterality")
    assert side.ConceptCodeSequence[0].CodeMeaning == "Right"


def test_an_abstention_names_no_condition_and_reassures_by_no_low_risk() -> None:
    diagnosis = diagnosed(abstained=True, risk=0.01)
    report = report_of(diagnosis)
    assert items(report, "Probability") == []
    assert items(report, "Risk of an urgent condition") == []
    (conclusion,) = items(report, "Conclusion")
    assert diagnosis.abstained in conclusion.TextValue
    (abstained,) = items(report, "The model abstains: it names no condition")
    assert abstained.ConceptCodeSequence[0].CodeMeaning == "Yes"
    assert items(report_of(diagnosed(abstained=True, risk=0.4)), "Risk of an urgent condition")


def test_names_of_a_bundle_and_a_header_fit_in(recwarn: pytest.WarningsRecorder) -> None:
    named = plain(name="a\\b\x1b" + "x" * 200).diagnosis
    broken = DicomIdentity(
        **{**vars(OLD.identity), "birth_date": "1970-01-02", "study_time": "noon", "sex": "?",
           "accession_number": "A" * 40}
    )  # fmt: skip
    facts = DicomFacts("photograph", "XC", 80, 60, identity=broken)
    report = report_of(named, facts)
    (condition,) = items(report, "Differential Diagnosis/Impression")
    assert condition.ConceptCodeSequence[0].CodeMeaning == "a/b\N{REPLACEMENT CHARACTER}" + "x" * 60
    assert (report.PatientBirthDate, report.PatientSex, report.StudyTime) == ("", "", "")
    assert [str(one.message) for one in recwarn] == []


def _encoded(form: str, *, mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.random.default_rng(3).integers(0, 256, (31, 47, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form, **options)
    return file.getvalue()


def _rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "Jane Doe"
    return _encoded("JPEG", exif=exif)


@pytest.mark.parametrize(
    ("photo", "syntax", "colours", "lossy"),
    [
        (_encoded("JPEG", subsampling=2, comment=b"Jane Doe"), ".4.50", "YBR_FULL_422", "01"),
        (_encoded("JPEG", subsampling=0), ".4.50", "YBR_FULL", "01"),
        (_encoded("JPEG", keep_rgb=True), ".4.50", "RGB", "01"),
        (_rotated(), ".1.2.1", "RGB", "01"),
        (_encoded("JPEG", progressive=True), ".1.2.1", "RGB", "01"),
        (_encoded("JPEG", mode="L"), ".1.2.1", "RGB", "01"),
        (_encoded("PNG"), ".1.2.1", "RGB", "00"),
    ],
)
def test_a_wrapped_photo_has_the_pixels_of_its_file(
    photo: bytes, syntax: str, colours: str, lossy: str
) -> None:
    from pydicom import dcmread
    from pydicom.encaps import generate_frames

    patient = Patient(age=4, sex="female", site="back")
    wrapped, _ = wrap_photo(photo, 1, HERS, patient)
    read = dcmread(io.BytesIO(wrapped))
    assert read.file_meta.TransferSyntaxUID.endswith(syntax)
    assert (read.PhotometricInterpretation, read.LossyImageCompression) == (colours, lossy)
    assert (read.PatientID, read.PatientAge, read.PatientSex) == ("MRN-1", "004Y", "F")
    assert (str(read.PatientName), read.StudyDate) == ("", "")
    if syntax == ".4.50":
        (frame,) = generate_frames(read.PixelData, number_of_frames=1)
        pixels_HWC = decode_stored_jpeg(frame)
    else:
        pixels_HWC = np.frombuffer(read.PixelData, np.uint8)[: 3 * read.Rows * read.Columns]
        pixels_HWC = pixels_HWC.reshape(read.Rows, read.Columns, 3)
    np.testing.assert_array_equal(pixels_HWC, decode(photo))
    assert b"Jane Doe" not in wrapped
    assert wrap_photo(photo, 1, HERS, patient)[0] == wrapped


@pytest.mark.parametrize("site", ["ear", "lip", "nail", "scalp", "genitals"])
def test_a_wrapped_photo_is_read_back_like_any_other(site: Site) -> None:
    photo = jpeg(90, 70)
    wrapped, facts = wrap_photo(photo, 1, HERS, Patient(site=site, laterality="left"))
    read = read_dicom(wrapped)
    np.testing.assert_array_equal(read.pixels_HWC, decode(photo))
    assert read.facts.identity == facts.identity
    assert (read.facts.site, read.facts.laterality) == (site, "left")
    subject = subject_of([None, read.facts])
    assert (subject.patient_id, subject.study_uid) == ("MRN-1", JANE.study_uid)
    assert subject.instance_uids == ("", facts.identity.instance_uid)


def test_wrapped_photos_are_of_the_study_that_is_named_or_of_the_dicom_photo() -> None:
    photos, nobody = [b"a", b"b"], [None, None]
    assert identity_of(JANE, photos, nobody) == HERS
    new = identity_of(Named("MRN-1"), photos, nobody)
    assert new == identity_of(Named("MRN-1"), photos, nobody)
    assert new.study_uid.startswith("2.25.")
    assert identity_of(Named("4711"), photos, [None, OLD]) == OLD.identity
    other = identity_of(Named("4711", "1.9"), photos, [None, OLD])
    assert (other.study_uid, other.patient_name, other.study_date) == ("1.9", "Müller^Jürgen", "")


@pytest.mark.parametrize("patient_id", ["a\\b", "x" * 65, "a\x1bb"])
def test_an_identifier_that_no_record_holds_is_refused(patient_id: str) -> None:
    with pytest.raises(UserError, match="cannot be stored in DICOM"):
        Named(patient_id)


@pytest.mark.parametrize("uid", ["1", "1.02", "1.2.", "a.b", "1.\u0663", "1." + "2" * 64])
def test_what_is_no_uid_is_refused(uid: str) -> None:
    with pytest.raises(UserError, match="not a study"):
        Named("p", uid)


def test_a_report_without_patient_or_study_is_refused() -> None:
    with pytest.raises(UserError, match=r"photo 1 is not a DICOM file, so its patient"):
        ReportFiles(dicom_sr=Path("sr.dcm")).check([jpeg(90, 70)])
    nameless = DicomFacts("photograph", "XC", 9, 9, identity=DicomIdentity(study_uid="1.2"))
    with pytest.raises(UserError, match="photo 2 has no series UID"):
        check_identity([OLD, nameless], Named())


def test_no_photo_and_no_other_report_is_replaced(tmp_path: Path) -> None:
    photo, report = tmp_path / "sr-photo-1.dcm", tmp_path / "sr.dcm"
    for files, paths in (
        (ReportFiles(dicom_sr=report), [report]),
        (ReportFiles(dicom_sr=report), [photo]),
        (ReportFiles(dicom_sr=report, fhir=report), []),
        (ReportFiles(pdf=photo), [photo]),
        (ReportFiles(pdf=report, fhir=report), []),
    ):
        with pytest.raises(UserError, match="is a photo or another report; give another file"):
            files.check([b""], paths)
    with pytest.raises(UserError, match="is a folder; give a file"):
        ReportFiles(pdf=tmp_path).check([b""], [photo])
    with pytest.raises(UserError, match="with --fhir or --dicom-sr"):
        ReportFiles(named=JANE, pdf=report).check([b""], [photo])


def test_photos_of_another_patient_are_refused() -> None:
    wrapped, _ = wrap_photo(jpeg(90, 70), 1, HERS, Patient())
    with pytest.raises(UserError, match="photo 1 belongs to another patient"):
        ReportFiles(fhir=Path("report.json"), named=Named("MRN-2")).check([wrapped])


def test_without_the_library_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.core.machine.missing_modules", lambda *names: list(names))
    with pytest.raises(UserError, match=r"--dicom-sr needs highdicom, pydicom, .*\[clinic\]"):
        ReportFiles(dicom_sr=Path("sr.dcm")).check([b""])


def record_of(report: Any) -> str:
    """Return the section that says whose a report is."""
    containers = [one for one in report.ContentSequence if one.ValueType == "CONTAINER"]
    (record,) = (
        one for one in containers if one.ConceptNameCodeSequence[0].CodeMeaning == "Record"
    )
    return str(record.ContentSequence[0].TextValue)


def test_date_and_patient_are_those_of_the_header_or_are_empty_and_said() -> None:
    record = record_of(report_of(diagnosed()))
    for line in ("Patient (pseudonym or ID): 4711.", "Study date of the photo's file: 20261126."):
        assert line in record
    nameless = DicomIdentity(study_uid="1.2.3", series_uid="1.2.3.4", instance_uid="1.2.3.4.5",
                             class_uid=OLD.identity.class_uid)  # fmt: skip
    bare = report_of(diagnosed(), DicomFacts("photograph", "XC", 80, 60, identity=nameless))
    assert (bare.PatientID, bare.StudyDate, bare.StudyTime) == ("", "", "")
    for line in ("Patient (pseudonym or ID): not given.", "Side of the body: not given.",
                 "Study date of the photo's file: not given.",
                 "Place on the body: back."):  # fmt: skip
        assert line in record_of(bare)


def test_a_new_study_is_of_the_day_of_its_photo() -> None:
    from pydicom import dcmread

    (photo,) = diagnosed().photos
    dated = photo.model_copy(update={"taken": "2026-05-01T10:30:00+02:00"})
    said = diagnosed().model_copy(update={"photos": (dated,)})
    for named, day in ((Named("MRN-1"), "20260501"), (JANE, "")):
        report, wrapped, _ = dicom_files(said, [jpeg(90, 70)], [None], None, WHEN, named=named)
        for file in (report, wrapped[1]):
            assert dcmread(io.BytesIO(file)).StudyDate == day
        assert f"file: {day or 'not given'}." in record_of(dcmread(io.BytesIO(report)))


def test_a_side_without_a_place_is_that_of_the_skin() -> None:
    sided = diagnosed().model_copy(update={"patient": Patient(laterality="right")})
    bare = DicomFacts("photograph", "XC", 80, 60, identity=OLD.identity)
    (site, *_) = items(report_of(sided, bare), "Finding Site")
    assert site.ConceptCodeSequence[0].CodeValue == "39937001"
    (side,) = items(site, "Laterality")
    assert side.ConceptCodeSequence[0].CodeMeaning == "Right"


def test_an_amended_report_says_what_a_clinician_recorded() -> None:
    from pydicom import dcmread

    recorded = RecordedDiagnosis("Nevus (mole)", "D22.9", "histopathology", who="ann", when=WHEN)
    filing = Filing("4711", "arm", kept=True, recorded=recorded)
    made = structured_report(diagnosed(), [OLD], None, WHEN, filing)
    record = record_of(dcmread(io.BytesIO(made)))
    for line in ("This report is amended", "Nevus (mole) (D22.9)", "Recorded by: login ann.",
                 "No clinician has verified this document.",
                 "confirmed by histopathology", "Recorded on: 26 November 2026"):  # fmt: skip
        assert line in record


def test_an_amended_report_names_the_one_before_it() -> None:
    from pydicom import dcmread

    filing = Filing("4711", "arm", kept=True)
    amended = replace(filing, recorded=RecordedDiagnosis("Nevus (mole)", opinion=True))
    first, last = (
        dcmread(io.BytesIO(structured_report(diagnosed(), [OLD], None, WHEN, one)))
        for one in (filing, amended)
    )
    assert last.PatientAge == "054Y"
    assert "PredecessorDocumentsSequence" not in first
    (study,) = last.PredecessorDocumentsSequence
    (series,) = study.ReferencedSeriesSequence
    (document,) = series.ReferencedSOPSequence
    assert study.StudyInstanceUID == first.StudyInstanceUID == last.StudyInstanceUID
    assert series.SeriesInstanceUID == first.SeriesInstanceUID == last.SeriesInstanceUID
    assert document.ReferencedSOPInstanceUID == first.SOPInstanceUID != last.SOPInstanceUID
    assert document.ReferencedSOPClassUID == first.SOPClassUID
    assert first.PreliminaryFlag == "PRELIMINARY"
    assert "PreliminaryFlag" not in last  # the text says that it is amended
    for report in (first, last):
        assert (report.CompletionFlag, report.VerificationFlag) == ("COMPLETE", "UNVERIFIED")
