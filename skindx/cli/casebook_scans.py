"""`skindx casebook scans`, `keep-scan` and `compare`: the scans of a case book."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import CasebookKey, CasebookPath, console
from skindx.core.text import cell


def list_scans(
    book: CasebookPath,
    *,
    owner: Annotated[
        str | None, typer.Option(help="Only scans of this login; default: all logins.")
    ] = None,
    casebook_key: CasebookKey = None,
) -> None:
    """List the stored scans, oldest first.

    Example: skindx casebook scans runs/cases.db
    """
    from rich.table import Table

    from skindx.casebook.casebook import Casebook

    table = Table("scan", "owner", "patient", "view", "taken (UTC)", "photos", "lesions")
    for column in table.columns:
        column.overflow = "fold"
    scans = Casebook.open(book, create=False, keys=casebook_key).scans.scans(owner)
    for scan in scans:
        table.add_row(
            scan.id,
            cell(scan.owner),
            cell(scan.patient),
            cell(scan.view),
            f"{scan.taken:%Y-%m-%d %H:%M}",
            str(scan.photos),
            str(scan.lesions),
        )
    console().print(table)
    print(f"{len(scans)} scan{'s' if len(scans) != 1 else ''}")


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
            "--consent-compare", help="The patient agrees that it is compared with other scans."
        ),
    ] = False,
    owner: Annotated[str, typer.Option(help="The login that may see it.")] = "",
    casebook_key: CasebookKey = None,
) -> None:
    """Keep a scan in the case book, encrypted; the folder stays as it is.

    Example: skindx casebook keep-scan runs/cases.db scans/back --patient P-017 --view back
    --consent --consent-compare
    """
    from skindx.casebook.casebook import Casebook

    opened = Casebook.open(book, keys=casebook_key)
    kept = opened.scans.keep(
        owner, scan, patient=patient, view=view, consent=consent, compare=consent_compare
    )
    print(f"kept as {kept}; delete {scan} if it is not needed in plain text")


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
    from skindx.casebook.casebook import Casebook
    from skindx.casebook.scan_comparison import compared
    from skindx.scan.compare.page import PAGE, headline, write_comparison

    opened = Casebook.open(book, create=False, keys=casebook_key)
    with compared(opened.scans, None, first, second) as comparison:
        write_comparison(out, comparison)
        print(f"{headline(comparison)}.")
    print(f"page: {out / PAGE}")


def add_scans(group: typer.Typer) -> None:
    """Add the verbs to `skindx casebook`."""
    group.command("scans")(list_scans)
    group.command("keep-scan")(keep_scan)
    group.command("compare")(compare)
