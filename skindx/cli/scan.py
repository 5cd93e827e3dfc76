"""`skindx scan`: photos of whole bodies."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skindx.cli.options import BundleText, Detector, Expect, Language, MissRate, Sets
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.core.private_files import private_file
from skindx.core.text import printable
from skindx.texts.catalogue import LANGUAGE, checked_language, joined, speaking, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skindx.scan.ruler import Ruler

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Photos of whole bodies: find every lesion and diagnose it.\n\n"
        "A scan shows what to look at. It is no diagnosis, and it can miss lesions."
    ),
)

_NEEDS = ("pyvips", "sqlalchemy", "zarr")

Device = Annotated[str, typer.Option(help="cpu, or a GPU such as cuda.")]


class AskAboutRulers:
    """Writes OUT-ruler-N.png for each photo and asks; `confirmed`: the images were checked.

    They stand beside OUT, which holds nothing while no scan has begun.
    """

    def __init__(self, out: Path, *, confirmed: bool) -> None:
        self.out, self.confirmed, self.questions = out, confirmed, 0

    def __call__(self, ruler: "Ruler", image_HW3: "NDArray[np.uint8]") -> bool:
        """Return whether a person says that the lines lie on the ticks. Raises UserError."""
        from PIL import Image

        self.questions += 1
        file = self.out.with_name(f"{self.out.name}-ruler-{self.questions}.png")
        shown = file.is_file()
        with private_file(file) as temporary:
            Image.fromarray(image_HW3).save(temporary, "PNG")
        print(joined(ruler.sentence, text("ruler_drawn", file=str(file))))
        if self.confirmed and shown:
            return True
        if sys.stdin.isatty():
            return typer.confirm(text("ruler_ask"))
        unconfirmed = text("ruler_unconfirmed", file=str(file))
        raise UserError(joined(unconfirmed, text("ruler_unconfirmed_do")))


@app.command()
def run(
    photos: Annotated[
        list[Path],
        typer.Argument(metavar="PHOTO...", help="Photos: JPEG, PNG, WebP, TIFF, HEIC or DICOM."),
    ],
    *,
    bundle: Annotated[
        BundleText,
        typer.Option(
            "--bundle",
            "-b",
            parser=BundleText,
            metavar="BUNDLE",
            help="RUN/bundle or an installed one's name; it has a detector, or --detector gives "
            "one.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the results.")],
    detector: Detector = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Worker processes here; default: one a core, at most 4."),
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
        float | None, typer.Option(metavar="MM", help="Millimetres in a pixel, of all photos.")
    ] = None,
    ruler: Annotated[
        bool,
        typer.Option("--ruler", help="Take millimetres from the ruler in each photo; it asks."),
    ] = False,
    confirm_ruler: Annotated[
        bool,
        typer.Option(
            "--confirm-ruler", help="The ticks that --ruler drew in OUT-ruler-N.png are right."
        ),
    ] = False,
    expect: Expect = None,
    miss_rate: MissRate = None,
    device: Device = "cpu",
    sets: Sets = None,
    language: Language = LANGUAGE,
) -> None:
    """Find every lesion on wide photos and diagnose each.

    To resume an interrupted scan, run the same command again.

    Example: skindx scan run back.jpg --bundle runs/demo/bundle --out scans/back

    Example: skindx scan run back.jpg --bundle ham10000 --detector models/lesion-detector -o back
    """
    require_extra("scan", *_NEEDS, purpose="a scan")
    from skindx.core.progress import progress_bars
    from skindx.diagnosis.record import unreviewed
    from skindx.scan.outputs.scan_result import read_summary
    from skindx.scan.scan_run import run_scan
    from skindx.scan.tile_search import ScanSettings

    if scale is not None and (ruler or confirm_ruler):
        raise UserError("--scale and --ruler both give the size of a pixel; remove one of them.")
    ask = AskAboutRulers(out, confirmed=confirm_ruler) if ruler or confirm_ruler else None
    given = {"miss_rate": miss_rate} if miss_rate is not None else {}
    settings = ScanSettings.load(None, sets or [], start=given)
    with speaking(checked_language(language)):
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
                detector=detector,
                device=device,
                progress=progress,
                mm_per_pixel=scale,
                confirm=ask,
            )
        said = list(scanned.problems)
        for photo in scanned.photos:
            found = text("scan_photo_lesions", name=photo.name, n=len(photo.lesions))
            skipped = text("scan_photo_skin", n=photo.tiles_without_skin, tiles=photo.tiles)
            said.append(joined(found, skipped))
        summary = read_summary(out)
        said += [summary.planted.promise] if summary.planted else []
        said += filter(None, (summary.no_urgent_risk, summary.scope.text, unreviewed()))
        said.append(joined(text("scan_results_in", folder=str(out)), text("scan_only_shows")))
        print("\n".join(map(printable, said)))


@app.command()
def worker(
    *,
    queue: Annotated[
        str,
        typer.Option(
            metavar="URL", envvar="SKINDX_SCAN_QUEUE", help="The scan's database or folder."
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
    from skindx.scan.scan_run import run_worker

    done = run_worker(queue, scan, patience, device, with_parent=with_parent)
    print(f"{done} tasks done")


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A folder that `skindx scan run` wrote.")],
    after: Annotated[Path, typer.Argument(help="The same, of a later scan of the same person.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; default: comparison/ beside AFTER."),
    ] = None,
    language: Language = LANGUAGE,
) -> None:
    """List lesions that are new, grown, changed or vanished between two scans of a person.

    Photos of the same view are aligned by points of the skin, or by the lesions where the skin
    shows none; photos that do not fit are refused. Growth has a 95 % interval. It writes
    comparison.html and changes.csv. It is a search for what to look at, no diagnosis.

    Example: skindx scan compare runs/back-2025 runs/back-2026 --out runs/back-compared
    """
    from skindx.scan.compare.scan_comparison import compare as compare_scans
    from skindx.scan.compare.scan_comparison import summary, write_comparison

    folder = out or after.resolve().parent / "comparison"
    with speaking(checked_language(language)):
        comparison = compare_scans(before, after)
        write_comparison(folder, comparison)
        print(summary(comparison, folder))
