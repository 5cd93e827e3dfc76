"""`skindx diagnose`."""

import inspect
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from skindx.cli.options import BundlePath, Expect, Language, MissRate, Prevalence, console
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules
from skindx.core.text import printable
from skindx.diagnosis.intake import INTAKE, OPTION_USES
from skindx.diagnosis.report import PdfPart
from skindx.texts.catalogue import LANGUAGE, checked_language, speaking, text

if TYPE_CHECKING:
    from skindx.diagnosis.case import PersonFacts

_TABLES = (".csv", ".parquet", ".jsonl", ".tsv", ".xlsx")
Modality = Literal["dermoscopic", "clinical"]
Challenge = Literal["isic2018", "isic2019", "isic2020", "milk10k"]


def _with_facts(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb an option for each fact of the intake; it gets all of them as `facts`.

    A further option is the language, which is spoken meanwhile.
    """

    def with_options(*, language: str = LANGUAGE, **given: Any) -> None:
        with speaking(checked_language(language)):
            verb(facts={name: given.pop(name) for name in INTAKE}, **given)

    signature = inspect.signature(verb)
    parameters = dict(signature.parameters)
    del parameters["facts"]
    options = [_option(name) for name in INTAKE]
    arguments = [one for one in parameters.values() if one.kind != inspect.Parameter.KEYWORD_ONLY]
    others = [one for one in parameters.values() if one.kind == inspect.Parameter.KEYWORD_ONLY]
    kind = inspect.Parameter.KEYWORD_ONLY
    spoken = inspect.Parameter("language", kind, default=LANGUAGE, annotation=Language)
    shown = signature.replace(parameters=[*arguments, *options, *others, spoken])
    with_options.__signature__ = shown  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in shown.parameters.values()}
    with_options.__doc__, with_options.__name__ = verb.__doc__, verb.__name__
    return with_options


def _option(name: str) -> inspect.Parameter:
    fact = INTAKE[name]
    shown = typer.Option(help=f"{fact.option}; {OPTION_USES[fact.use]}.")
    kind: Any = int | None if fact.number else str | None
    annotation = Annotated[kind, shown]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


@_with_facts
def diagnose(
    bundle: BundlePath,
    photos: Annotated[
        list[Path],
        typer.Argument(
            metavar="PHOTO...",
            help="1 to 3 photos of one place: JPEG, PNG, WebP, HEIC or DICOM. With --out: one "
            "folder of photos, or one table with a column `file`.",
        ),
    ],
    *,
    facts: "PersonFacts",
    expect: Expect = None,
    miss_rate: MissRate = None,
    prevalence: Prevalence = None,
    modality: Annotated[
        Modality | None,
        typer.Option(
            help="How the photos were taken: an answer comes though the check of modality alone "
            "refuses them, and says so."
        ),
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Also print what the page folds: how, limits, basis."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
    pdf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report as PDF.")
    ] = None,
    pdf_part: Annotated[
        PdfPart,
        typer.Option(help="--pdf: all, without the technical basis, or the patient's page alone."),
    ] = "full",
    fhir: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a FHIR R4 DiagnosticReport.")
    ] = None,
    fhir_pdf: Annotated[
        bool, typer.Option("--fhir-pdf/--no-fhir-pdf", help="--fhir: carry the PDF report within.")
    ] = True,
    dicom_sr: Annotated[
        Path | None,
        typer.Option(
            "--dicom-sr",
            metavar="FILE",
            help="Also write a DICOM structured report to this file. A photo that is no DICOM file "
            "is wrapped as one beside it, which needs --patient-id.",
        ),
    ] = None,
    patient_id: Annotated[
        str,
        typer.Option(metavar="ID", help="Whose photos they are, for --pdf, --fhir and --dicom-sr."),
    ] = "",
    study_uid: Annotated[
        str, typer.Option(metavar="UID", help="The study of wrapped photos; default: a new one.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="TABLE", help="Many photos: .csv, .parquet or .jsonl."),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="Many photos: also a page, urgent ones first."),
    ] = None,
    challenge: Annotated[
        Challenge | None,
        typer.Option("--format", help="Many photos: --out is a submission to this challenge, CSV."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="CLASS=COLUMN",
            help="--format: the column of a class; CLASS= leaves it out, =COLUMN is 0. Repeatable.",
        ),
    ] = None,
) -> None:
    """Diagnose photos of skin: the next step, the likely conditions, and why.

    A photo that is not good enough for an answer is refused, with advice.

    A folder, or a table with a column `file` and columns of facts (age, sex, site, ...), is
    answered photo by photo into the table --out. To resume an interrupted run, run the same command
    again.

    Example: skindx diagnose runs/demo/bundle near.jpg wide.jpg --age 54 --pdf report.pdf

    Example: skindx diagnose runs/demo/bundle photos --out answers.csv --summary answers.html
    """
    if swapped := next((path for path in photos if (path / "bundle.json").is_file()), None):
        raise UserError(
            f"the bundle must come before the photos; run `skindx diagnose {swapped} PHOTO`."
        )
    if (
        out
        or summary
        or challenge
        or any(path.is_dir() or path.suffix in _TABLES for path in photos)
    ):
        unfit = [name for name, value in facts.items() if value is not None]
        unfit += ["pdf_part"] if pdf_part != "full" else []
        reports = {"pdf": pdf, "fhir": fhir, "dicom_sr": dicom_sr, "patient_id": patient_id}
        one_case: dict[str, object] = {
            "json": as_json,
            "details": details,
            **reports,
            "study_uid": study_uid,
            "modality": modality,
        }
        unfit += [name for name, value in one_case.items() if value]
        submission = (challenge, columns or []) if challenge else None
        served = (bundle, expect, miss_rate, prevalence)
        _many(photos, out, summary, unfit, served, submission=submission)
        return
    from skindx.api.model import load
    from skindx.api.predictions import patient_of
    from skindx.casebook.case_names import identifying
    from skindx.clinic.report_files import ReportFiles
    from skindx.clinic.source_photos import Named
    from skindx.core.private_files import write_private
    from skindx.diagnosis.case import Case
    from skindx.diagnosis.filing import Filing
    from skindx.diagnosis.photo_checks import Refused, read_photos
    from skindx.diagnosis.report.answer_report import print_diagnosis
    from skindx.diagnosis.report.unjudged_report import unjudged, unjudged_pdf

    patient_of(facts)  # before a bundle is loaded and photos are read
    files = ReportFiles(fhir, dicom_sr, Named(patient_id, study_uid), pdf, pdf_part)
    model = load(bundle, expect, miss_rate=miss_rate, prevalence=prevalence)
    case = read_photos(photos)
    files.check(case, photos)
    try:
        answered = model.diagnose(case, modality=modality or "", **facts)
    except Refused as error:
        if pdf and not missing_modules("fpdf"):
            record = unjudged(Case(case, patient_of(facts)), error)
            now, filing = datetime.now().astimezone(), Filing(patient_id)
            printed = unjudged_pdf(record, now, filing, pdf_part)
            write_private(pdf, printed)
            print(f"note: {text('refused_record', file=str(pdf))}", file=sys.stderr)
        if error.unless:
            print(f"note: {text('refused_unless', kind=error.unless)}", file=sys.stderr)
        raise
    makes = pdf or (fhir and fhir_pdf and not missing_modules("fpdf"))
    if makes and (doubt := identifying(patient_id, "", "lesion")):
        print(f"note: {doubt}", file=sys.stderr)
    files.write(answered.diagnosis, case, answered.metrics, answered.pdf if makes else None)
    if as_json:
        print(answered.diagnosis.named().model_dump_json(indent=2))
    else:
        print_diagnosis(answered.diagnosis, console(), details=details)


def _many(
    sources: list[Path],
    out: Path | None,
    summary: Path | None,
    unfit: list[str],
    served: tuple[Path, str | None, float | None, Path | None],
    *,
    submission: tuple[Challenge, list[str]] | None,
) -> None:
    from skindx.api.answer_file import answer_photos, check_output, write_table
    from skindx.core.progress import progress_bars
    from skindx.diagnosis.photo_list import columns_of, list_photos, write_submission
    from skindx.diagnosis.predictor import Predictor
    from skindx.ui.answers_page import check_page, write_page

    if out is None:
        raise UserError(
            "the answers for many photos are written to a table, and --out is missing; add --out "
            "answers.csv."
        )
    if len(sources) != 1:
        raise UserError(
            f"--out works with one folder or one table of photos, not with {len(sources)} paths; "
            "give one folder or table."
        )
    if unfit:
        raise UserError(
            f"--{unfit[0].replace('_', '-')} describes one case and cannot be used with a folder "
            "or table of photos; remove this option, and put such facts into columns of the "
            "table of photos."
        )
    if submission and out.suffix.lower() != ".csv":
        raise UserError(
            f"the submission to {submission[0]} must be a CSV file, but --out is {out}; give "
            "--out a name that ends in .csv."
        )
    check_output(out)
    check_page(summary)
    listed = list_photos(sources[0])
    bundle, expect, miss_rate, prevalence = served
    predictor = Predictor.load(bundle, expect=expect, miss_rate=miss_rate, prevalence=prevalence)
    write: Callable[..., object] = write_table
    if submission:
        name, given = submission
        columns = columns_of(name, predictor.taxonomy.keys, given)
        write = lambda out, _, rows: write_submission(out, name, rows, columns)  # noqa: E731
    for note in listed.notes:
        print(printable(note))
    with progress_bars() as progress:
        page = None
        if summary:
            page = partial(write_page, summary, listed, predictor, table=out, progress=progress)
        counts = answer_photos(
            listed, predictor, out, page=page, write=write, prevalence=prevalence, progress=progress
        )
    print(f"{counts.text} Answers: {out}{f'; summary: {summary}' if summary else ''}.")
