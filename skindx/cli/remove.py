"""`skindx publish` and `skindx remove`: give a dataset away, take an image down everywhere."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from skindx.cli.options import BundleText, Sets, console
from skindx.core.errors import UserError
from skindx.core.text import cell, printable

if TYPE_CHECKING:
    from skindx.data.removal.takedown import AffectedImage, RemovalPlan


def remove(
    datasets: Annotated[list[Path], typer.Argument(help="Datasets to remove the image from.")],
    *,
    url: Annotated[list[str] | None, typer.Option(help="URL of the image.")] = None,
    sha: Annotated[list[str] | None, typer.Option(help="SHA-256 of its bytes.")] = None,
    reason: Annotated[str, typer.Option(help="The reason; it is stored, so name no person.")] = "",
    near: Annotated[
        bool, typer.Option("--near/--only-exact", help="Also remove its copies.")
    ] = True,
    published: Annotated[
        list[Path] | None, typer.Option(help="Also remove it from this published folder.")
    ] = None,
    bundle: Annotated[
        list[BundleText] | None,
        typer.Option(
            parser=BundleText,
            metavar="BUNDLE",
            help="Also from this bundle; its model card says whether it learned from it.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed; write nothing.")
    ] = False,
) -> None:
    """Take an image down for good: from datasets, bundles and published folders.

    Its copies are removed too and listed: near copies by their hashes (scaled, turned, recoded),
    and those that the dataset's build verified (crops, watermarks, second photos). The hashes and
    the URL go to DATASET/blocklist.jsonl: no later build adds or fetches the image again. If the
    command is interrupted, run it again. You must delete copies that skindx does not know: box
    exports, a loader's cache elsewhere, downloads by others.

    Example: skindx remove runs/mine/data --url https://example.org/7.jpg --published runs/mine/pub
    """
    from skindx.core.progress import progress_bars
    from skindx.data.removal.takedown import plan, source_copies
    from skindx.models.bundle.installed import refuse_change

    if not (url or sha):
        raise UserError(
            "no image to remove is named; add --url URL or --sha SHA256 for each image."
        )
    for path in () if dry_run else bundle or []:
        refuse_change(path)
        _clear(path)
    _check_published(published or [])
    with progress_bars() as progress:
        planned = plan(
            datasets, urls=url or [], sha256s=sha or [], reason=reason, near=near, progress=progress
        )
    # Whether a bundle can be opened is known before anything is changed.
    used = [(path, _used(path, planned)) for path in bundle or []]
    _print_plan(planned, dry_run)
    for path, uses in used:
        for line in (*_bundle_lines(path, uses), *_part_lines(path, planned)):
            print(line)
    for file in source_copies(planned):
        print(f"your own copy stays until you delete it: {printable(str(file))}")
    if dry_run:
        _would(published or [], list(planned.blocked.by_sha))
        return
    _take_down(planned, published or [], used)


def _take_down(
    planned: "RemovalPlan",
    published: Sequence[Path],
    used: Sequence[tuple[Path, dict[str, str | None]]],
) -> None:
    from skindx.data.layout import BLOCKLIST
    from skindx.data.publish.assemble import drop
    from skindx.data.removal.takedown import carry_out

    gone = list(planned.blocked.by_sha)
    carry_out(planned)
    for folder in published:
        print(f"published {folder}: {drop(folder, gone)} taken out")
    for path, uses in used:
        from skindx.models.bundle.bundle import open_bundle
        from skindx.models.bundle.bundle_changes import forget, record_removal

        forget(path, gone)
        record_removal(path, uses)
        print(f"bundle {path}: its new digest is {open_bundle(path).digests}")
    lists = ", ".join(str(dataset / BLOCKLIST) for dataset in planned.datasets)
    print(f"{len(gone)} on the block list: {lists}")


def _check_published(folders: Sequence[Path]) -> None:
    from skindx.data.publish.assemble import is_published

    for folder in folders:
        if not is_published(folder):
            raise UserError(
                f"{folder} was not written by `skindx publish`; give a folder that was."
            )


def _would(published: Sequence[Path], gone: Sequence[str]) -> None:
    from skindx.data.publish.assemble import held_in

    for folder in published:
        print(f"published {folder}: {held_in(folder, gone)} would be taken out")


def _used(bundle: Path, planned: "RemovalPlan") -> dict[str, str | None]:
    from skindx.models.bundle.bundle_changes import uses

    return uses(bundle, planned.blocked.by_sha.values())


def _clear(bundle: Path) -> None:
    from skindx.models.bundle.bundle_changes import clear_leftovers

    clear_leftovers(bundle)


def _part_lines(bundle: Path, planned: "RemovalPlan") -> list[str]:
    from skindx.models.bundle.bundle_changes import would_forget

    change = would_forget(bundle, planned.blocked.by_sha)
    lines = []
    if change.gallery:
        lines.append(
            f"bundle {bundle}: its index of similar cases loses {change.gallery}, near copies "
            f"included."
        )
    if change.fingerprints:
        lines.append(f"bundle {bundle}: it no longer recognises {change.fingerprints} of them.")
    if change.ood:
        lost = "1 of its images" if change.ood == 1 else f"{change.ood} of its images"
        what = (
            "is fitted again without them"
            if change.refitted
            else "is removed, since too few are left to fit one; train again to get a check"
        )
        lines.append(f"bundle {bundle}: its out-of-distribution check loses {lost} and {what}.")
    return lines


def _bundle_lines(path: Path, used: dict[str, str | None]) -> list[str]:
    learned = sum(split == "train" for split in used.values())
    unknown = sum(split is None for split in used.values())
    lines = []
    if learned:
        lines.append(
            f"bundle {path} learned from {learned} of them, and its weights cannot forget them: "
            f"its card says so; train again on the rebuilt dataset."
        )
    if unknown:
        lines.append(
            f"bundle {path} was trained on another version of the dataset: it is not known whether "
            f"it learned from {unknown} of them, and its card says so."
        )
    if (path.resolve().parent / "evaluation").is_dir():
        lines.append(
            f"{path.resolve().parent / 'evaluation'} may show them among its mistakes: run "
            f"`skindx evaluate` again."
        )
    return lines or [f"bundle {path} did not learn from them."]


def _print_plan(planned: "RemovalPlan", dry_run: bool) -> None:
    from rich.table import Table

    table = Table("dataset", "image", "label", "split", "because", "URL")
    for column in table.columns:
        column.overflow = "fold"
    words = {"asked": "asked for", "copy": "copy"}
    for row in planned.going:
        table.add_row(*_cells(row), words[row.why], cell(row.known.url))
    screen = console()
    screen.print("These would go:" if dry_run else "These go:")
    screen.print(table)
    for why, sentence in _STAYING.items():
        rows = [row for row in planned.staying if row.why == why]
        if rows:
            screen.print(sentence)
            beside = Table("dataset", "image", "label", "split", "URL")
            for staying in rows:
                beside.add_row(*_cells(staying), cell(staying.known.url))
            screen.print(beside)
    for dataset in planned.not_compared:
        screen.print(
            f"{printable(str(dataset))} was built without the search for copies that hashes miss "
            f"(crops, turns, watermarks): build it again to find them.",
            markup=False,
            highlight=False,
        )


_STAYING = {
    "uncertain": "These may be copies; they stay unless you name them too:",
    "group": "These are of the same patient, lesion or page; they stay unless you name them too:",
}


def _cells(going: "AffectedImage") -> list[str]:
    known = going.known
    cells = (str(going.dataset), known.sha256[:12], known.label, known.split or "not kept")
    return [cell(text) for text in cells]


Format = Literal["hub", "imagefolder", "fiftyone"]


def publish(
    source: Annotated[
        BundleText,
        typer.Argument(
            parser=BundleText,
            metavar="DATASET_OR_BUNDLE",
            help="A folder that `skindx build` wrote, or a bundle.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; default of a bundle: skindx-NAME."),
    ] = None,
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="A bundle: its name once it is installed.")
    ] = "",
    version: Annotated[
        str, typer.Option("--version", metavar="1.0.0", help="A bundle: that of its distribution.")
    ] = "",
    rows: Annotated[
        bool,
        typer.Option("--rows", help="A bundle: with age, sex and site of each evaluated image."),
    ] = False,
    form: Annotated[
        Format, typer.Option("--format", help="hub: Parquet shards for `load_dataset`.")
    ] = "hub",
    contact: Annotated[
        str,
        typer.Option(help="Address for take-down requests; default: the recipe's fetch.contact."),
    ] = "",
    unaudited: Annotated[
        bool, typer.Option("--unaudited", help="Publish without `skindx audit`.")
    ] = False,
    sets: Sets = None,
) -> None:
    """Write a copy of a dataset, or of a bundle, that may be published.

    Dataset: the licence of each image decides, and metadata are stripped. An image with an unknown
    or no-derivatives licence, or one flagged for a face, text or an intimate region, is only
    listed, with the reason. An earlier copy in OUT is replaced.

    Bundle: a distribution that pip installs, after which NAME stands for the bundle. It needs
    `use:` with a licence, and the evaluation of its release in release/ beside it. examples/ and
    LICENSE beside it are taken along.

    Example: skindx publish runs/mine/data --out runs/mine/public --contact mail@example.org

    Example: skindx publish runs/mine/bundle --as mine --out mine
    """
    if (source / "bundle.json").is_file():
        if form != "hub" or contact or unaudited or sets:
            raise UserError(
                f"{source} is a bundle, and only --as, --out, --version and --rows apply to a "
                "bundle; remove the other options."
            )
        _publish_bundle(source, name, out, version or "1.0.0", rows=rows)
        return
    if name or version or rows:
        raise UserError(
            f"{source} is not a bundle, and --as, --version and --rows apply only to a bundle; "
            "remove these options."
        )
    if out is None:
        raise UserError(
            "--out is missing; add --out with the folder to write, such as --out public."
        )
    from skindx.core.progress import progress_bars
    from skindx.data.publish.assemble import publish as publish_dataset
    from skindx.data.publish.publish_settings import PublishSettings

    start: dict[str, Any] = {"format": form, "contact": contact, "unaudited": unaudited}
    settings = PublishSettings.load(None, sets or [], start=start)
    with progress_bars() as progress:
        done = publish_dataset(source, out, settings, progress=partial(progress, "publish"))
    print(f"{done.folder}: {done.published} of {done.kept} images published.")
    for reason, count in done.withheld.items():
        print(f"  {count} withheld: {reason}")
    if done.reencoded:
        print(f"  {done.reencoded} coded once more: without metadata they would display wrongly.")


def _publish_bundle(path: Path, name: str, out: Path | None, version: str, *, rows: bool) -> None:
    from skindx.evaluation.release import is_release, read_release
    from skindx.models.bundle.bundle import open_bundle
    from skindx.models.bundle.installed import RELEASE, write_distribution

    if not name:
        raise UserError(
            f"{path} is a bundle, and the name of its package is missing; add --as NAME."
        )
    bundle, release = open_bundle(path), path.absolute().with_name(RELEASE)
    if not is_release(release):
        raise UserError(
            f"bundle {path} has no evaluation of its release in {release}; run `skindx evaluate "
            f"{path} DATA --release` to write one."
        )
    folder = out or Path(f"skindx-{name}")
    measured = read_release(release).origin.bundle_digest or ""
    write_distribution(bundle, name, folder, version=version, measured=measured, rows=rows)
    print(f"{folder}: skindx-{name.replace('_', '-')} {version}, bundle digest {bundle.digest}.")
    left = " and the rows of its evaluation (age, sex and site of each image)" if rows else ""
    print(
        f"It holds the bundle, its card, the figures of its release{left}; read it before it goes."
    )
    print(f"To use it: pip install ./{folder}, then skindx serve {name}")
