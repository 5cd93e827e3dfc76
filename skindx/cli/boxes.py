"""`skindx review`, where a person decides, and `skindx boxes`: lesion boxes in and out."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from skindx.cli.options import BundlePath, Split, console
from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.core.text import cell, printable
from skindx.data.boxes.box_file import BoxFormat, Unannotated, WrittenFormat, YoloColumns

if TYPE_CHECKING:
    from skindx.metrics import Interval


app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Lesion boxes: export, import, propose, and compare annotators.\n\n"
        "For a dataset without boxes: propose boxes, export them to Label Studio, correct them "
        "there, import them, and compare annotators with agree."
    ),
)

Dataset = Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")]


@app.command("export")
def export_verb(  # noqa: PLR0917
    dataset: Dataset,
    kind: Annotated[WrittenFormat, typer.Option("--format", "-f", help="Format to write.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="coco, labelstudio: a .json; cvat: a .xml; others: a folder."
        ),
    ],
    split: Annotated[Split | None, typer.Option(help="Only this split; default: all.")] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Folders: copy the images instead of linking them.")
    ] = False,
    proposals: Annotated[
        bool, typer.Option("--proposals", help="labelstudio: include the model's proposals.")
    ] = False,
    prefix: Annotated[
        str, typer.Option(help="labelstudio: prefix of the paths of images in the dataset.")
    ] = "/data/local-files/?d=",
) -> None:
    """Write the boxes for another tool: a working copy, not for publishing.

    A file or folder holds the annotated images, including those without a lesion. For Label
    Studio, each image is a task; to show the images, start Label Studio with the variables
    LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and
    LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=DATASET. CVAT takes the file into a task of the same
    images, FiftyOne the folder as FiftyOneImageDetectionDataset.

    Example: skindx boxes export runs/mine/data --format yolo --out runs/mine/yolo
    """
    from skindx.data.boxes.box_exchange import export_boxes
    from skindx.data.boxes.labelstudio import interface

    done = export_boxes(
        dataset, out, kind, split=split, copy=copy, proposals=proposals, prefix=prefix
    )
    print(
        f"{out}: {done.images} images with {done.boxes} boxes; {done.empty} annotated "
        f"as without a lesion; {done.waiting} without annotations"
        + (f", {done.proposed} with proposals." if proposals else ".")
    )
    if kind == "labelstudio":
        print(f"labelling interface for its project: {printable(interface(done.labels))}")


@app.command("import")
def import_verb(  # noqa: PLR0917
    dataset: Dataset,
    file: Annotated[Path, typer.Argument(help="A file or folder of boxes.")],
    kind: Annotated[
        BoxFormat | None,
        typer.Option("--format", "-f", help="Format; default: detected from the content."),
    ] = None,
    by: Annotated[
        str, typer.Option(help="Name of the reviewer; exports of Label Studio contain it.")
    ] = "",
    unannotated: Annotated[
        Unannotated,
        typer.Option(
            help="coco, cvat, fiftyone: images without annotation; yolo: images without a label "
            "file; masks: empty ones. negative: somebody looked, and there is no lesion."
        ),
    ] = "skip",
    columns: Annotated[
        YoloColumns | None,
        typer.Option(help="yolo: what lines of over six columns are; default: as they look."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse the file for anything left out or uncertain.")
    ] = False,
) -> None:
    """Import boxes that a person drew into the dataset; they replace older ones.

    DATASET/annotations.parquet keeps the boxes of each reviewer; the manifest holds the latest.
    Rows that cannot be used and boxes that fit no image are left out, counted and named. An image
    is found by its SHA-256, else by its path: the longest common path counts.

    Example: skindx boxes import runs/mine/data drawn.json --by "Dr. Mole"
    """
    from skindx.data.boxes.box_exchange import import_boxes

    done = import_boxes(
        dataset, file, kind=kind, by=by, unannotated=unannotated, columns=columns, strict=strict
    )
    for name, images in done.annotators.items():
        print(printable(f"{name}: {images} images"))
    labels = ", ".join(f"{label} {count}" for label, count in sorted(done.labels.items()))
    print(
        f"{done.boxes} boxes ({printable(labels) or 'none'}); {done.empty} images without a "
        f"lesion; {done.replaced} replaced older ones."
    )
    for finding in done.findings:
        print(printable(finding.line()))


@app.command()
def agree(
    dataset: Dataset,
    first: Annotated[
        str, typer.Argument(help="Name of a reviewer or of a model, or `recipe`.")
    ] = "",
    second: Annotated[str, typer.Argument(help="The same, to compare with.")] = "",
    threshold: Annotated[float, typer.Option(help="Smallest IoU of two boxes that match.")] = 0.5,
) -> None:
    """Compare two annotators on the images that both annotated.

    Boxes are matched one to one by overlap (IoU). Intervals are 95 % intervals over groups. Kappa
    is Cohen's: 1 is full agreement, 0 is agreement by chance. `recipe` stands for the boxes that
    the dataset was built with; a model is named as in its proposals.

    Example: skindx boxes agree runs/mine/data "Dr. Mole" "Dr. Naevus"
    """
    from rich.table import Table

    from skindx.data.boxes.annotations import agree as compare_annotators

    names = [name for name in (first, second) if name]
    agreement = compare_annotators(dataset, names, threshold=threshold)
    table = Table("agreement", f"{agreement.images} images, {agreement.groups} groups")
    table.add_row(f"boxes of A, {cell(agreement.first)}", str(agreement.boxes_first))
    table.add_row(f"boxes of B, {cell(agreement.second)}", str(agreement.boxes_second))
    table.add_row(f"matched at IoU ≥ {agreement.threshold:g}", str(agreement.matched))
    table.add_row("mean IoU of the matched", _shown(agreement.iou))
    table.add_row("share of A's boxes matched", _shown(agreement.rate_first))
    table.add_row("share of B's boxes matched", _shown(agreement.rate_second))
    table.add_row("kappa: a lesion or none", _shown(agreement.kappa_presence))
    table.add_row("kappa: class of matched boxes", _shown(agreement.kappa_class))
    console().print(table)


@app.command()
def propose(
    dataset: Dataset,
    bundle: BundlePath,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Also propose for annotated images, to compare.")
    ] = False,
) -> None:
    """Let a bundle propose boxes for images without annotations.

    They are written to DATASET/proposals.parquet, least confident first. They become part of the
    dataset only after a person has checked them: in `skindx review`, or in Label Studio (`skindx
    boxes export --format labelstudio --proposals`).

    Example: skindx boxes propose runs/mine/data runs/other/bundle
    """
    from skindx.core.progress import progress_bars
    from skindx.review.box_proposals import propose as propose_boxes

    with progress_bars() as progress:
        done = propose_boxes(
            dataset, bundle, everywhere=everywhere, progress=partial(progress, "propose")
        )
    if done.note:
        print(f"{done.note}: boxes are where the class activation of {done.model} is high.")
    print(
        f"{done.model}: {done.boxes} boxes in {done.images} images, none in {done.empty}; "
        f"{done.skipped} annotated images left as they are."
    )


def _shown(interval: "Interval | None") -> str:
    if interval is None:
        return "cannot be said"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


ReasonName = Literal[
    "face", "text", "intimate", "label", "not-skin", "off-topic", "quality", "copy", "box"
]

Port = Annotated[int, typer.Option(help="Port; only this machine can reach it.")]


def review(
    dataset: Dataset,
    *,
    by: Annotated[
        str, typer.Option(help="Name of the reviewer; default: the page asks for it once.")
    ] = "",
    reason: Annotated[
        ReasonName | None, typer.Option(help="Begin with what is there for this reason.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write all answers to this CSV file instead.")
    ] = None,
    port: Port = 7861,
) -> None:
    """Open one page to decide what programs flagged: images, labels, copies and boxes.

    It shows flags of `skindx audit` and of the build, doubtful labels, pairs that may be copies
    and boxes that a model proposes. The keys keep, withhold, remove or relabel an image, call two
    images the same or different and a box right or wrong; `?` lists them. Answers are rows of
    DATASET/decisions.csv, which the next build follows; several people may review at once.

    Example: skindx review runs/mine/data --by "Dr. Mole"
    """
    if export is None:
        from skindx.ui.review import serve

        serve(dataset, by, reason=reason or "", port=port)
        return
    from skindx.review.dataset_review import EXPORTED, exported

    if export.is_dir() or export.resolve().parent == dataset.resolve():
        raise UserError(
            f"--export {export} is a folder or lies inside the dataset; give the path of a CSV "
            "file outside the dataset."
        )
    rows = list(exported(dataset))
    write_csv(export, EXPORTED, rows)
    print(f"{export}: {len(rows)} answers.")
