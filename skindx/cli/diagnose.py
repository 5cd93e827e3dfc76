"""`skindx diagnose`."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import Expect, MissRate, Prevalence, console

_UNUSED = "printed in the report, changes no answer"
_MAYBE = "changes the answer of a bundle that learned from it, else no answer"


def diagnose(
    bundle: Annotated[Path, typer.Argument(help="A bundle, RUN/bundle.")],
    photos: Annotated[
        list[Path],
        typer.Argument(
            metavar="PHOTO...", help="1 to 3 photos of one place: JPEG, PNG, WebP or HEIC."
        ),
    ],
    *,
    age: Annotated[int | None, typer.Option(help=f"Age in years; {_MAYBE}.")] = None,
    sex: Annotated[str | None, typer.Option(help=f"female, male or other; {_MAYBE}.")] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Place on the body: scalp, face, ear, neck, chest, abdomen, back, trunk, arm, "
            f"hand, genitals, leg, foot, palm or sole; {_MAYBE}."
        ),
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
        Path | None, typer.Option(metavar="FILE", help="Also write the report as PDF to this file.")
    ] = None,
) -> None:
    """Diagnose photos of skin: the next step, the likely conditions, and why.

    A photo that is not good enough for an answer is refused, with advice.

    Example: skindx diagnose runs/demo/bundle near.jpg wide.jpg --age 54 --pdf report.pdf
    """
    from datetime import datetime

    from skindx.core.atomic_files import atomic_file
    from skindx.diagnosis.answer_report import print_diagnosis, report_pdf
    from skindx.diagnosis.case import Case, Patient
    from skindx.diagnosis.diagnose import answer
    from skindx.diagnosis.photo_checks import read_photos
    from skindx.diagnosis.predictor import Predictor

    given = {"age": age, "sex": sex, "site": site, "duration": duration, "skin_type": skin_type}
    patient = Patient.parse(given, origin="patient")
    predictor = Predictor.load(bundle, expect=expect, miss_rate=miss_rate, prevalence=prevalence)
    answered = answer(predictor, Case(read_photos(photos), patient))
    if pdf:
        report = report_pdf(answered, predictor.bundle.metrics(), datetime.now().astimezone())
        with atomic_file(pdf, mode=0o600) as file:  # health data
            file.write_bytes(report)
    if as_json:
        print(answered.diagnosis.model_dump_json(indent=2))
    else:
        print_diagnosis(answered.diagnosis, console())
