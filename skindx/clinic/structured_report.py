"""An answer as a DICOM structured report: Comprehensive SR by the template TID 1500.

DICOM PS3.16: TID 1500 Measurement Report with a group (TID 1501) for each condition, for each risk
and for each photo. The text of the whole answer stands before the groups, notice first.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from skindx import __version__
from skindx.clinic.narrative import (
    ICD10,
    ICD10_OID,
    SNOMED,
    Section,
    reached_name,
    risk_figures,
    risk_is_sure,
    risk_name,
    sections,
    sites,
    snomed,
)
from skindx.clinic.source_photos import dicom_file, set_identity, uid_of
from skindx.core.text import printable
from skindx.diagnosis.checklist_advice import urgency_given
from skindx.diagnosis.filing import NOT_FILED, Filing
from skindx.diagnosis.record import Candidate, Diagnosis, in_its_language
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.imaging.dicom_facts import DicomFacts, DicomIdentity
from skindx.imaging.dicom_pixels import EXPLICIT
from skindx.models.urgent_risk import Question
from skindx.texts.catalogue import text, word

if TYPE_CHECKING:
    from highdicom.sr import (
        CodedConcept,
        ContainerContentItem,
        FindingSite,
        MeasurementsAndQualitativeEvaluations,
    )
    from pydicom.dataset import Dataset


_LOCAL = "99SKINDX"
"""Designator of codes that no public scheme has; the guide lists them."""
_SERIES_NUMBER = 900
_SIDES = {"left": "Left", "right": "Right", "both sides": "RightAndLeft"}


@in_its_language(named=False)
def structured_report(
    diagnosis: Diagnosis,
    photos: Sequence[DicomFacts],
    metrics: dict[str, Any] | None,
    when: datetime,
    filing: Filing = NOT_FILED,
) -> bytes:
    """Return the report as a DICOM file; `photos` are the headers of the diagnosis' photos.

    It is of the first photo's patient and study. `metrics` are the bundle's own. The report on an
    answer that a clinician corrected names the version before as its predecessor (PS3.3 C.17.2)
    and lies in the series of the first. No clinician has signed any, so each is unverified, and it
    says so. None is called final; a report that is not amended is called preliminary.
    """
    from highdicom.coding_schemes import CodingSchemeIdentificationItem
    from highdicom.sr import ComprehensiveSR

    identity = photos[0].identity
    filing = replace(filing, patient=filing.patient or identity.patient_id)
    same = f"{diagnosis.model_dump_json()} {when.isoformat()}"
    seeds = [hashlib.sha256(f"{same} {one}".encode()).hexdigest() for one in filing.seeds()]
    first, seed = seeds[0], seeds[-1]
    earlier = [_report_instance(identity, first, seeds[-2])] if len(seeds) > 1 else None
    made = filing.amended or when
    schemes = [
        CodingSchemeIdentificationItem(ICD10, name="ICD-10-CM", registry="HL7", uid=ICD10_OID),
        CodingSchemeIdentificationItem(_LOCAL, name="Codes of skindx"),
    ]
    said = sections(diagnosis, metrics, when, filing, study_date=identity.study_date)
    report = ComprehensiveSR(
        evidence=[_evidence(photo) for photo in photos],
        content=_content(diagnosis, photos, said, seed),
        series_instance_uid=uid_of("series", first),
        series_number=_SERIES_NUMBER,
        sop_instance_uid=uid_of("report", seed),
        instance_number=len(seeds),
        previous_versions=earlier,
        manufacturer="skindx",
        manufacturer_model_name=_short(diagnosis.source.name),
        software_versions=__version__,
        device_serial_number=diagnosis.source.digest or diagnosis.source.version,
        is_complete=True,
        is_final=False,
        is_verified=False,
        series_description=text("sr_series"),
        coding_schemes=schemes,
        specific_character_set="ISO_IR 192",
        content_date=made.date(),
        content_time=made.time().replace(microsecond=0),
    )
    if filing.status == "amended":  # neither a draft nor final, and the flag has no third value
        del report.PreliminaryFlag
    report.TimezoneOffsetFromUTC = made.strftime("%z")[:5] or "+0000"
    if diagnosis.patient.age is not None:
        report.PatientAge = f"{diagnosis.patient.age:03d}Y"
    return dicom_file(report, EXPLICIT)


def _report_instance(identity: DicomIdentity, first: str, seed: str) -> "Dataset":
    """Return what a report refers to of another one; `first` is the seed of its series."""
    from pydicom.dataset import Dataset
    from pydicom.uid import ComprehensiveSRStorage

    dataset = Dataset()
    dataset.StudyInstanceUID = identity.study_uid
    dataset.SeriesInstanceUID = uid_of("series", first)
    dataset.SOPClassUID, dataset.SOPInstanceUID = ComprehensiveSRStorage, uid_of("report", seed)
    return dataset


def _evidence(photo: DicomFacts) -> "Dataset":
    """Return as much of a photo's header as a report refers to."""
    from pydicom.dataset import Dataset

    dataset = Dataset()
    set_identity(dataset, photo.identity)
    dataset.Modality = photo.modality or "XC"
    dataset.Rows, dataset.Columns = photo.height, photo.width
    return dataset


def _content(
    diagnosis: Diagnosis, photos: Sequence[DicomFacts], said: Sequence[Section], seed: str
) -> "Dataset":
    from highdicom.sr import (
        DeviceObserverIdentifyingAttributes,
        MeasurementReport,
        ObservationContext,
        ObserverContext,
    )
    from pydicom.sr.codedict import codes

    source = diagnosis.source
    device = DeviceObserverIdentifyingAttributes(
        uid=uid_of("device", source.digest or source.version),
        name="skindx",
        manufacturer_name="skindx",
        model_name=f"bundle {_short(source.name)}",
        serial_number=source.digest or source.version,
    )
    observer = ObserverContext(
        observer_type=codes.DCM.Device, observer_identifying_attributes=device
    )
    report = MeasurementReport(
        observation_context=ObservationContext(observer_device_context=observer),
        procedure_reported=_local("photo-analysis", text("sr_title")),
        imaging_measurements=list(_groups(diagnosis, photos, seed)),
    )
    root = report[0]
    texts = [_text(one) for one in said]
    *before, measurements = root.ContentSequence
    root.ContentSequence = type(root.ContentSequence)([*before, *texts, measurements])
    return root


def _text(section: Section) -> "ContainerContentItem":
    """Return a section as a container, whose name viewers show as a heading."""
    from highdicom.sr import ContainerContentItem, ContentSequence, TextContentItem
    from pydicom.sr.codedict import codes

    name = codes.DCM.Conclusion if section.code == "next-step" else codes.DCM.Comment
    container = ContainerContentItem(
        name=_local(section.code, section.heading), relationship_type="CONTAINS"
    )
    container.ContentSequence = ContentSequence(
        [
            TextContentItem(
                name=name, value="\r\n".join(section.sentences), relationship_type="CONTAINS"
            )
        ]
    )
    return container


def _groups(
    diagnosis: Diagnosis, photos: Sequence[DicomFacts], seed: str
) -> "Iterator[MeasurementsAndQualitativeEvaluations]":
    from highdicom.sr import (
        AlgorithmIdentification,
        Measurement,
        MeasurementsAndQualitativeEvaluations,
        QualitativeEvaluation,
        SourceImageForMeasurementGroup,
        TrackingIdentifier,
    )
    from pydicom.sr.codedict import codes

    source = diagnosis.source
    sites = _sites(diagnosis, photos)

    def group(name: str, places: Sequence[int], **parts: Any) -> Any:
        images = [photos[place].identity for place in places]
        return MeasurementsAndQualitativeEvaluations(
            tracking_identifier=TrackingIdentifier(uid=uid_of(name, seed), identifier=name),
            algorithm_id=AlgorithmIdentification(
                name="skindx",
                version=__version__,
                parameters=[
                    f"bundle {_short(source.name)}",
                    f"bundle version SHA-256 {source.version}",
                    f"bundle digest SHA-256 {source.digest or 'unknown'}",
                    f"evaluation digest SHA-256 {source.evaluation or 'none'}",
                    f"runtime {source.backend}",
                ],
            ),
            finding_sites=sites or None,
            source_images=[
                SourceImageForMeasurementGroup(one.class_uid, one.instance_uid) for one in images
            ],
            **parts,
        )

    def share(name: "CodedConcept", value: float) -> Any:
        return Measurement(name=name, value=round(100 * value, 4), unit=codes.UCUM.Percent)

    def evaluation(name: "CodedConcept", value: Any) -> Any:
        return QualitativeEvaluation(name, value)

    every = range(len(photos))
    given = urgency_given(diagnosis)
    answers = [
        evaluation(
            _local("urgency", text("sr_urgency")),
            _local(given, word(given).capitalize()),
        ),
        evaluation(
            _local("abstained", text("sr_abstained")),
            codes.SCT.Yes if diagnosis.abstained else codes.SCT.No,
        ),
    ]
    lesion = {"finding_type": codes.SCT.SkinLesion}
    yield group("next step", every, qualitative_evaluations=answers, **lesion)
    for rank, candidate in enumerate(() if diagnosis.abstained else diagnosis.candidates, 1):
        in_set = _local("in-set", text("sr_in_set"))
        facts = [
            # Not a finding: what is found is a lesion.
            *(evaluation(codes.DCM.DifferentialDiagnosisImpression, x) for x in _codes(candidate)),
            evaluation(in_set, codes.SCT.Yes if candidate.in_set else codes.SCT.No),
        ]
        yield group(
            f"condition {rank}",
            every,
            **lesion,
            measurements=[share(codes.DCM.Probability, candidate.probability)],
            qualitative_evaluations=facts,
        )
    risks: list[tuple[Question, UrgentRisk | None]] = [
        ("urgent_risk", diagnosis.urgent_risk),
        ("soon_risk", diagnosis.soon_risk),
    ]
    for question, risk in risks:
        if risk is None or not risk_is_sure(diagnosis, risk):
            continue
        code, display = question.replace("_", "-"), risk_name(question)
        named = [share(_local(code, display), risk.risk)]
        for one in risk_figures(risk, question):
            named.append(share(_local(one.code, one.name), one.value))
            if interval := one.interval:
                low, high = text("risk_low", name=one.name), text("risk_high", name=one.name)
                named.append(share(_local(f"{one.code}-low", low), interval.low))
                named.append(share(_local(f"{one.code}-high", high), interval.high))
        reached = _local(f"{code}-reached", reached_name(question))
        facts = [evaluation(reached, codes.SCT.Yes if risk.is_reached else codes.SCT.No)]
        yield group(
            display[:1].lower() + display[1:],
            every,
            measurements=named,
            qualitative_evaluations=facts,
        )
    valid = _local("photo-valid", text("photo_good"))
    for place in every:
        facts = [evaluation(valid, codes.SCT.Yes)]
        yield group(f"photo {place + 1}", [place], qualitative_evaluations=facts)


def _sites(diagnosis: Diagnosis, photos: Sequence[DicomFacts]) -> "list[FindingSite]":
    """Return the place of the lesion, as a photo's header codes it or as it was given."""
    from highdicom.sr import CodedConcept, FindingSite
    from pydicom.sr.codedict import codes

    site = diagnosis.patient.site
    first = photos[0]
    scheme, _, code = first.region_code.partition(":")
    laterality = diagnosis.patient.laterality or first.laterality
    side = getattr(codes.SCT, _SIDES.get(laterality, ""), None)
    if scheme == SNOMED and code and first.region and site in (None, first.site):
        return [FindingSite(CodedConcept(code, SNOMED, _short(first.region)), laterality=side)]
    concept = sites().get(site) if site else None
    if concept is None:  # the side alone, of the skin
        return [FindingSite(codes.SCT.Skin, laterality=side)] if side else []
    return [FindingSite(CodedConcept(concept.code, SNOMED, concept.meaning), laterality=side)]


def _codes(candidate: Candidate) -> "list[CodedConcept]":
    """Return a condition by SNOMED CT and by ICD-10-CM, by its key where it has neither."""
    from highdicom.sr import CodedConcept

    name, concept = _short(word(candidate.name)), snomed(candidate)
    coded = [CodedConcept(concept.code, SNOMED, concept.meaning)] if concept else []
    if candidate.icd10:
        coded.append(CodedConcept(candidate.icd10, ICD10, name))
    return coded or [_local(_short(candidate.key), name)]


def _local(code: str, meaning: str) -> "CodedConcept":
    from highdicom.sr import CodedConcept

    return CodedConcept(code, _LOCAL, _short(meaning))


def _short(value: str) -> str:
    """Return text for a short value of DICOM: one line of 64 characters without a backslash."""
    return " ".join(printable(value).replace("\\", "/").split())[:64].strip() or "–"
