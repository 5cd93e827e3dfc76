"""`skindx casebook`: list, export and delete stored cases; keep and compare scans."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skindx.cli.options import CasebookKey, CasebookPath, console
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.core.text import cell, counted

if TYPE_CHECKING:
    from skindx.casebook.casebook import Casebook
    from skindx.casebook.findings import ConfirmedFinding


app = typer.Typer(
    no_args_is_help=True,
    help="List, export and delete the cases of a case book; keep and compare scans.",
)
Owner = Annotated[str | None, typer.Option(help="Only those of this login; default: all logins.")]


def _open(book: str, casebook_key: Path | None, *, create: bool = False) -> "Casebook":
    require_extra("serve", "sqlalchemy", "cryptography", purpose="a case book")
    from skindx.casebook.casebook import Casebook

    return Casebook.open(book, create=create, keys=casebook_key)


def _finding(one: "ConfirmedFinding") -> str:
    diagnosis = one.outside.words if one.outside else one.confirmed
    return ", by ".join(filter(None, (diagnosis, one.confirmed_by)))


@app.command("list")
def list_cases(
    book: CasebookPath, *, owner: Owner = None, casebook_key: CasebookKey = None
) -> None:
    """List the stored cases, oldest first.

    Example: skindx casebook list runs/cases.db
    """
    from rich.table import Table

    from skindx.casebook.kept_case import PURPOSES

    table = Table(
        *("case", "owner", "patient", "lesion", "kept (UTC)", "photo taken", "photos"),
        *("confirmed", "consents"),
    )
    for column in table.columns:
        column.overflow = "fold"
    opened = _open(book, casebook_key)
    cases = opened.all_cases(owner)
    for case in cases:
        lapsed, _ = case.finding.lapsed
        found = [
            _finding(case.finding),
            f"last confirmed: {_finding(lapsed.finding)}" if lapsed else "",
        ]
        table.add_row(
            case.id,
            cell(case.owner),
            cell(case.patient),
            cell(case.lesion),
            f"{case.taken:%Y-%m-%d %H:%M %Z}",
            f"{case.photographed:%Y-%m-%d}" if case.photographed else "",
            str(len(case.photos)),
            cell("; ".join(filter(None, found))),
            ", ".join(purpose for purpose in PURPOSES if purpose in case.purposes),
        )
    console().print(table)
    print(counted(len(cases), "case"))
    if lost := opened.unreadable():
        print(
            f"{len(lost)} more cannot be read, because {opened.keys.path} lacks their keys: "
            f"restore the newest key file, or delete them: {' '.join(lost)}"
        )


@app.command()
def export(
    book: CasebookPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    *,
    owner: Owner = None,
    casebook_key: CasebookKey = None,
    taxonomy: Annotated[
        str | None,
        typer.Option(help="Taxonomy of the labels, written into the recipe: skin10, a YAML file."),
    ] = None,
) -> None:
    """Write the confirmed cases as images, a table and a recipe for `skindx build`.

    Only cases whose patient agreed to training are written, and only those confirmed as one of the
    model's classes. A clinical opinion, or a diagnosis whose basis is not stated, is left out. All
    images of one patient are in one group, so no split divides them.
    Pseudonyms and notes stay in the case book.

    Example: skindx casebook export runs/cases.db --out runs/feedback

    Then: skindx build runs/feedback/recipe.yaml --out runs/feedback-data
    """
    from skindx.casebook.casebook_export import RECIPE, left_out
    from skindx.casebook.casebook_export import export as write

    opened = _open(book, casebook_key)
    cases = opened.all_cases(owner)
    images = write(cases, out, opened.export_key(), taxonomy=taxonomy)
    print(
        f"{counted(images, 'image')} of confirmed cases in {out}; next: skindx build {out / RECIPE}"
    )
    if sentence := left_out(cases):
        print(sentence)


@app.command()
def delete(
    book: CasebookPath,
    case: Annotated[
        list[str], typer.Argument(help="Cases or scans as `list` and `scans` name them.")
    ],
    *,
    casebook_key: CasebookKey = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete cases or scans and destroy their keys, so that remaining bytes cannot be read.

    You must delete earlier exports and older copies of the key file yourself.

    Example: skindx casebook delete runs/cases.db 3f2a6c0e9d1b4c7f8a5e6d7c8b9a0f1e
    """
    opened = _open(book, casebook_key)
    if not yes and sys.stdin.isatty():
        some = "this case" if len(case) == 1 else f"these {len(case)} cases"
        if not typer.confirm(f"Delete {some} for good? This cannot be undone."):
            print("nothing is deleted")
            return
    scans = opened.scans.ids()
    for case_id in case:
        if case_id in scans:
            opened.scans.delete(None, case_id)
        else:
            opened.delete(None, case_id)
        print(f"{cell(case_id)} is deleted")


@app.command("scans")
def list_scans(
    book: CasebookPath, *, owner: Owner = None, casebook_key: CasebookKey = None
) -> None:
    """List the stored scans, oldest first.

    Example: skindx casebook scans runs/cases.db
    """
    from rich.table import Table

    table = Table("scan", "owner", "patient", "view", "scanned (UTC)", "photos", "lesions")
    for column in table.columns:
        column.overflow = "fold"
    scans = _open(book, casebook_key).scans.scans(owner)
    for scan in scans:
        table.add_row(
            scan.id,
            cell(scan.owner),
            cell(scan.patient),
            cell(scan.view),
            f"{scan.taken:%Y-%m-%d %H:%M %Z}",
            str(scan.photos),
            str(scan.lesions),
        )
    console().print(table)
    print(counted(len(scans), "scan"))


@app.command("keep-scan")
def keep_scan(
    book: CasebookPath,
    scan: Annotated[Path, typer.Argument(help="A folder that `skindx scan run` wrote.")],
    *,
    patient: Annotated[str, typer.Option(help="A pseudonym, no name.")],
    view: Annotated[str, typer.Option(help="Such as: back, standing.")],
    consent: Annotated[
        bool, typer.Option("--consent", help="The patient agrees that it is kept.")
    ] = False,
    consent_compare: Annotated[
        bool,
        typer.Option(
            "--consent-compare", help="The patient agrees to comparisons with other scans."
        ),
    ] = False,
    no_person: Annotated[
        bool, typer.Option("--no-person", help="The names do not tell who the patient is.")
    ] = False,
    owner: Annotated[str, typer.Option(help="The login that may see it.")] = "",
    casebook_key: CasebookKey = None,
) -> None:
    """Keep a scan in the case book, encrypted; the folder stays as it is.

    Example: skindx casebook keep-scan runs/cases.db scans/back --patient P-017 --view back
    --consent --consent-compare
    """
    opened = _open(book, casebook_key, create=True)
    from skindx.casebook.case_names import IdentifyingName

    try:
        kept = opened.scans.keep(
            owner,
            scan,
            patient=patient,
            view=view,
            consent=consent,
            compare=consent_compare,
            no_person=no_person,
        )
    except IdentifyingName as error:
        raise UserError(f"{error} If it names nobody, add --no-person.") from None
    print(f"kept as {kept}; delete {scan} if it is not needed in plain text")


@app.command()
def compare(
    book: CasebookPath,
    first: Annotated[str, typer.Argument(help="A scan as `skindx casebook scans` names it.")],
    second: Annotated[str, typer.Argument(help="Another one of the same view.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; it is not encrypted.")],
    casebook_key: CasebookKey = None,
) -> None:
    """List what changed between two kept scans of a view, as `skindx scan compare` does.

    Example: skindx casebook compare runs/cases.db FIRST SECOND --out compared
    """
    opened = _open(book, casebook_key)
    from skindx.casebook.scan_book import compared
    from skindx.scan.compare.scan_comparison import summary, write_comparison

    with compared(opened.scans, None, first, second) as comparison:
        write_comparison(out, comparison)
        print(summary(comparison, out))
