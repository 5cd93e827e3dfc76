"""`skindx diagnose`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from skindx.cli.options import Expect, MissRate, Prevalence, console
from skindx.core.errors import UserError
from skindx.core.text import printable

if TYPE_CHECKING:
    from skindx.api.predictions import PersonFacts

_UNUSED = "printed in the report, changes no answer"
_MAYBE = "changes answers if the bundle learned from it"
_TABLES = (".csv", ".parquet", ".jsonl")
Challenge = Literal["isic2018", "isic2019", "isic2020", "milk10k"]


def diagnose(
    bundle: Annotated[Path, typer.Argument(help="A bundle, RUN/bundle.")],
    photos: Annotated[
        list[Path],
        typer.Argument(
            metavar="PHOTO...",
            help="1 to 3 photos of one place: JPEG, PNG, WebP, HEIC or DICOM. With --out: one "
            "folder of photos, or one table with a column `file`.",
        ),
    ],
    *,
    age: Annotated[int | None, typer.Option(help=f"Age in years; {_MAYBE}.")] = None,
    sex: Annotated[str | None, typer.Option(help=f"female, male or other; {_MAYBE}.")] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Place on the body: scalp, face, ear, lip, neck, chest, abdomen, back, trunk, "
            f"arm, hand, palm, nail, genitals, leg, foot, sole, palm or sole; {_MAYBE}."
        ),
    ] = None,
    laterality: Annotated[
        str | None, typer.Option(help=f"Its side of the body: left, right or midline; {_UNUSED}.")
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help=f"How long it has been there: days, weeks, months, years or always; {_UNUSED}."
        ),
    ] = None,
    skin_type: Annotated[
        int | None,
        typer.Option(help="Fitzpatrick skin type, 1 to 6; selects the thresholds fitted for it."),
    ] = None,
    expect: Expect = None,
    miss_rate: MissRate = None,
    prevalence: Prevalence = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
    pdf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report as PDF.")
    ] = None,
    fhir: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a FHIR R4 DiagnosticReport.")
    ] = None,
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
        str, typer.Option(metavar="ID", help="Whose photos they are, for --fhir and --dicom-sr.")
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

    A folder, or a table with a column `file` and columns of facts (age, sex, site, skin_type), is
    answered photo by photo into the table --out. To resume an interrupted run, run the same command
    again.

    Example: skindx diagnose runs/demo/bundle near.jpg wide.jpg --age 54 --pdf report.pdf

    Example: skindx diagnose runs/demo/bundle photos --out answers.csv --summary answers.html
    """
    given: PersonFacts = {
        "age": age,
        "sex": sex,
        "site": site,
        "laterality": laterality,
        "duration": duration,
        "skin_type": skin_type,
    }
    if swapped := next((path for path in photos if (path / "bundle.json").is_file()), None):
        raise UserError(f"{swapped} is a bundle; it comes first: skindx diagnose {swapped} PHOTO.")
    if (
        out
        or summary
        or challenge
        or any(path.is_dir() or path.suffix in _TABLES for path in photos)
    ):
        unfit = [name for name, value in given.items() if value is not None]
        reports = {"pdf": pdf, "fhir": fhir, "dicom_sr": dicom_sr, "patient_id": patient_id}
        one_case: dict[str, object] = {"json": as_json, **reports, "study_uid": study_uid}
        unfit += [name for name, value in one_case.items() if value]
        submission = (challenge, columns or []) if challenge else None
        served = (bundle, expect, miss_rate, prevalence)
        _many(photos, out, summary, unfit, served, submission=submission)
        return
    from skindx.api.model import load
    from skindx.api.predictions import patient_of
    from skindx.clinic.source_photos import Named
    from skindx.clinic.structured_report import ReportFiles
    from skindx.core.private_files import write_private
    from skindx.diagnosis.answer_report import print_diagnosis
    from skindx.diagnosis.photo_checks import read_photos

    patient_of(given)  # before a bundle is loaded and photos are read
    files = ReportFiles(fhir, dicom_sr, Named(patient_id, study_uid), pdf)
    model = load(bundle, expect, miss_rate=miss_rate, prevalence=prevalence)
    case = read_photos(photos)
    files.check(case, photos)
    answered = model.diagnose(case, **given)
    if pdf:
        write_private(pdf, answered.pdf())
    files.write(answered.diagnosis, case, answered.metrics)
    if as_json:
        print(answered.diagnosis.model_dump_json(indent=2))
    else:
        print_diagnosis(answered.diagnosis, console())


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
        raise UserError("many photos are answered into a table; give --out answers.csv.")
    if len(sources) != 1:
        raise UserError(f"--out takes one folder or table, and {len(sources)} came; give one.")
    if unfit:
        raise UserError(
            f"--{unfit[0].replace('_', '-')} is of one case; facts about many photos stand in "
            "columns of a table, and their answers in --out."
        )
    if submission and out.suffix.lower() != ".csv":
        raise UserError(f"{out} is no CSV, and a submission to {submission[0]} is one; correct it.")
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
