"""`skindx scan`: photos of whole bodies."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import Expect, MissRate, Sets
from skindx.cli.scan_compare import add_compare
from skindx.cli.scan_ruler import AskAboutRulers
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.core.text import counted, printable

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Photos of whole bodies: find every lesion and diagnose it.\n\n"
        "A scan shows what to look at. It is no diagnosis, and it can miss lesions."
    ),
)

_NEEDS = ("pyvips", "sqlalchemy", "zarr")

Device = Annotated[str, typer.Option(help="cpu, or a GPU such as cuda.")]


@app.command()
def run(
    photos: Annotated[
        list[Path],
        typer.Argument(metavar="PHOTO...", help="Photos: JPEG, PNG, WebP, TIFF or HEIC."),
    ],
    *,
    bundle: Annotated[
        Path, typer.Option("--bundle", "-b", help="A bundle with a detector, RUN/bundle.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the results.")],
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Worker processes on this machine; default: one a core, at most 4. 0: workers of "
            "other machines alone.",
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="SKINDX_SCAN_QUEUE",
            help="A PostgreSQL database for the tasks; default: a SQLite file in the results. The "
            "environment hides a password from other users, an option does not.",
        ),
    ] = None,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds after which a silent worker counts as dead.")
    ] = 60.0,
    scale: Annotated[
        float | None,
        typer.Option(metavar="MM", help="Millimetres in a pixel, of all photos."),
    ] = None,
    ruler: Annotated[
        bool,
        typer.Option(
            "--ruler", help="Take millimetres from the ruler that each photo shows; it asks."
        ),
    ] = False,
    confirm_ruler: Annotated[
        bool,
        typer.Option(
            "--confirm-ruler",
            help="Use the ruler whose ticks --ruler drew in OUT-ruler-N.png: they were checked.",
        ),
    ] = False,
    expect: Expect = None,
    miss_rate: MissRate = None,
    device: Device = "cpu",
    sets: Sets = None,
) -> None:
    """Find every lesion on wide photos and diagnose each.

    To resume an interrupted scan, run the same command again.

    Example: skindx scan run back.jpg --bundle runs/demo/bundle --out scans/back
    """
    require_extra("scan", *_NEEDS, purpose="a scan")
    from skindx.core.progress import progress_bars
    from skindx.scan.outputs.summary import read_summary
    from skindx.scan.running import run_scan
    from skindx.scan.settings import ScanSettings

    if scale is not None and (ruler or confirm_ruler):
        raise UserError("--scale and --ruler both say how large a pixel is; give one of them.")
    ask = AskAboutRulers(out, confirmed=confirm_ruler) if ruler or confirm_ruler else None
    given = {"miss_rate": miss_rate} if miss_rate is not None else {}
    settings = ScanSettings.load(None, sets or [], start=given)
    with progress_bars() as progress:
        scanned = run_scan(
            photos,
            bundle,
            out,
            settings,
            workers=workers,
            queue=queue,
            lease_s=lease,
            expect=expect,
            device=device,
            progress=progress,
            mm_per_pixel=scale,
            confirm=ask,
        )
    for sentence in scanned.problems:
        print(sentence)
    for photo in scanned.photos:
        print(
            f"{photo.name}: {counted(len(photo.lesions), 'lesion')}; {photo.tiles_without_skin} of "
            f"{counted(photo.tiles, 'tile')} show no skin"
        )
    summary = read_summary(out)
    for sentence in (summary.no_urgent_risk, summary.scope.text):
        if sentence:
            print(printable(sentence))
    print(f"results in {out}; a scan shows what to look at, is no diagnosis, and can miss lesions")


@app.command()
def worker(
    *,
    queue: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="SKINDX_SCAN_QUEUE",
            help="The scan's database, or the folder given as --out.",
        ),
    ],
    scan: Annotated[str, typer.Option(help="Only this scan's tasks.", hidden=True)] = "",
    patience: Annotated[
        float, typer.Option(min=0, help="End when there was no task for so many seconds.")
    ] = 60.0,
    device: Device = "cpu",
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End with standard input.", hidden=True)
    ] = False,
) -> None:
    """Do tasks of scans that others have begun, from any machine that has the scan's folder.

    The folder and the bundle must be at the same paths here. Workers may be ended at any time:
    what they had not finished is done by others.

    Example: skindx scan worker --queue postgresql+psycopg://user@host/leases
    """
    require_extra("scan", *_NEEDS, purpose="a scan")
    from skindx.scan.running import run_worker

    done = run_worker(queue, scan, patience, device, with_parent=with_parent)
    print(f"{done} tasks done")


add_compare(app)
