"""`skindx evaluate`, `recompute`, `adapt` to another place, and `features` of an absent tower."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from skindx.cli.options import BundlePath, BundleText, Expect, MissRate, Part, console
from skindx.core.errors import UserError


def evaluate(
    bundle: BundlePath,
    dataset: Annotated[Path, typer.Argument(help="The dataset to score it on.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Report folder; default: evaluation/ beside the bundle."),
    ] = None,
    split: Annotated[
        Part | None,
        typer.Option(help="test, the default; val for choices; all, the default of --external."),
    ] = None,
    external: Annotated[
        bool,
        typer.Option(
            "--external",
            help="The dataset is another one: say what changes, at unchanged thresholds.",
        ),
    ] = False,
    internal: Annotated[
        Path | None,
        typer.Option(metavar="EVALUATION", help="For --external: the bundle's own evaluation."),
    ] = None,
    pictures: Annotated[
        Literal["licensed", "local", "none"],
        typer.Option(
            help="Pictures of mistakes in the report: licensed, which `skindx publish` would give "
            "away; local, also those that name no licence; none."
        ),
    ] = "licensed",
    checklist: Annotated[
        bool, typer.Option("--checklist", help="Fill in STARD-AI, TRIPOD+AI and CLEAR Derm.")
    ] = False,
    release: Annotated[
        bool,
        typer.Option(
            "--release",
            help="Keep a row of each image of val, calibration and test; default folder: release/.",
        ),
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DATASET", help="For --release: an external dataset; repeatable."
        ),
    ] = None,
    expect: Expect = None,
    miss_rate: MissRate = None,
) -> None:
    """Evaluate a bundle on a dataset and write an HTML report.

    It uses the same predictor that serves the page. Intervals are 95 % intervals over groups
    (patients, lesions, duplicates). The figures of the test split and the model card with them are
    put beside the bundle, whose digest stays; they have an evaluation digest of their own. On a
    dataset with another taxonomy (external validation), classes are matched by key, name or code;
    images of other classes are left out. So are images that the bundle was made from, and copies
    of them in other bytes.

    Example: skindx evaluate runs/mine/bundle runs/mine/data

    External: skindx evaluate runs/mine/bundle other/data --external

    A release: skindx evaluate runs/mine/bundle runs/mine/data --release --also clinic=other/data
    """
    from skindx.api.verbs import evaluate as evaluate_bundle
    from skindx.core.progress import progress_bars
    from skindx.energy import energy_reported
    from skindx.evaluation.checklist import write_checklists
    from skindx.evaluation.evaluation_report import print_table
    from skindx.models.bundle.installed import beside

    if release or also:
        if not release or external or internal or split or checklist:
            raise UserError(
                "--split, --external, --internal and --checklist cannot be combined with "
                "--release, and --also works only with --release; remove these options, and give "
                "external datasets as --release --also NAME=DATASET."
            )
        return _evaluate_release(
            bundle, dataset, out, also or [], expect=expect, miss_rate=miss_rate
        )
    external = external or internal is not None
    folder = out or beside(bundle, "external" if external else "evaluation")
    with energy_reported("evaluate", folder), progress_bars() as progress:
        report = evaluate_bundle(
            bundle,
            dataset,
            folder,
            split=split,
            external=external,
            internal=internal,
            digest=expect,
            miss_rate=miss_rate,
            pictures=pictures,
            progress=progress,
        )
    print_table(report.scores, console())
    print(f"report: {folder / 'report.html'}")
    if checklist:
        print(f"checklists: {write_checklists(folder)}")
    if report.digest:
        print(f"bundle: digest {report.digest}, unchanged")
        print(f"these figures lie beside it: evaluation digest {report.evaluation_digest}")
    return None


def _evaluate_release(
    bundle: Path,
    dataset: Path,
    out: Path | None,
    also: list[str],
    *,
    expect: str | None,
    miss_rate: float | None,
) -> None:
    from skindx.core.progress import progress_bars
    from skindx.core.untrusted import read_json
    from skindx.evaluation.evaluate import METRICS
    from skindx.evaluation.evaluation_report import print_table
    from skindx.evaluation.release import evaluate_release
    from skindx.models.bundle.bundle_changes import add_metrics
    from skindx.models.bundle.installed import InstalledPath, beside, shown

    named = dict(part.partition("=")[::2] for part in also)
    if len(named) < len(also) or not all(named.values()):
        raise UserError(
            "each --also must be NAME=DATASET with a different NAME; write it like --also "
            "clinic=other/data."
        )
    folder = out or beside(bundle, "release")
    words = ["skindx evaluate", shown(bundle), str(dataset), "--release"]
    words += [f"--also {part}" for part in also]
    words += [] if miss_rate is None else [f"--miss-rate {miss_rate}"]
    with progress_bars() as progress:
        test = evaluate_release(
            bundle,
            dataset,
            folder,
            also={name: Path(path) for name, path in named.items()},
            expect=expect,
            miss_rate=miss_rate,
            command=" ".join(words),
            progress=partial(progress, "release"),
        )
    print_table(test, console())
    print(f"report: {folder / 'report.html'}; `skindx recompute {folder}` makes its figures again")
    if isinstance(bundle, InstalledPath):
        return
    changed = add_metrics(bundle, read_json(folder / METRICS, finite=False), expect)
    print(f"bundle: digest {changed.digest}, unchanged")
    print(f"these figures lie beside it: evaluation digest {changed.evaluation}")


def recompute(
    evaluation: Annotated[
        BundleText,
        typer.Argument(
            parser=BundleText,
            metavar="EVALUATION",
            help="A folder that `skindx evaluate` wrote, or an installed bundle's name.",
        ),
    ],
    *,
    internal: Annotated[
        Path | None,
        typer.Option(metavar="EVALUATION", help="What an external one is compared with."),
    ] = None,
    checklist: Annotated[
        bool, typer.Option("--checklist", help="If they agree, fill in the checklists again.")
    ] = False,
) -> None:
    """Compute every figure of an evaluation again from its rows.

    predictions.csv, or rows.parquet of a release, holds one row an image: neither bundle nor
    dataset is needed. Figures that do not
    agree with metrics.json are named, and the exit status is then 1.

    Example: skindx recompute runs/mine/evaluation
    """
    from skindx.evaluation.image_table import NOT_IN_TABLE, TABLE
    from skindx.evaluation.image_table import recompute as recompute_figures
    from skindx.evaluation.release import ROWS, is_release, recompute_release
    from skindx.models.bundle.installed import RELEASE, InstalledPath

    if isinstance(evaluation, InstalledPath):
        evaluation = evaluation.with_name(RELEASE)
    if of_release := is_release(evaluation):
        if internal or checklist:
            raise UserError(
                "--internal and --checklist do not work on the evaluation of a release; remove "
                "them."
            )
        result = recompute_release(evaluation)
    else:
        result = recompute_figures(evaluation, internal)
    rows = evaluation / (ROWS if of_release else TABLE)
    for place, (printed, again) in result.differing.items():
        print(f"{place}: printed {printed}, recomputed {again}")
    if result.differing:
        count = len(result.differing)
        print(f"{count} of {result.figures} figures do not agree with {rows}")
        raise typer.Exit(1)
    other = internal or of_release
    rest = [name for name in NOT_IN_TABLE if name != "elsewhere" or not other]
    print(
        f"all {result.figures} figures agree with {rows}; not in the table: "
        f"{', '.join(rest)} (images that were not scored, another evaluation)"
    )
    if checklist:
        from skindx.evaluation.checklist import write_checklists

        print(f"checklists: {write_checklists(evaluation)}")


def adapt(
    bundle: BundlePath,
    local: Annotated[Path, typer.Argument(help="A dataset of labelled local images.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new bundle.")],
    split: Annotated[
        Part, typer.Option(help="The local images to use; keep others to evaluate on.")
    ] = "all",
    keep_mix: Annotated[
        bool,
        typer.Option("--keep-mix", help="Keep the mix of diseases: images were picked by class."),
    ] = False,
    expect: Expect = None,
) -> None:
    """Fit a bundle's probabilities and thresholds to labelled local images.

    25 to a few hundred images of another camera or clinic, at least 19 lesions. It fits the
    temperature, the mix of diseases, the conformal sets, the urgent thresholds and the threshold
    of the out-of-distribution check, and writes a new bundle with a digest of its own. The
    networks stay, so it does not make them tell diseases apart any better. The figures before and
    after are cross-fitted: no image is judged by what was fitted on it.

    Example: skindx adapt runs/mine/bundle clinic/data --out runs/clinic/bundle

    To evaluate on the rest: skindx adapt runs/mine/bundle clinic/data --split calibration
    --out runs/clinic/bundle, then skindx evaluate runs/clinic/bundle clinic/data
    """
    from skindx.core.progress import progress_bars
    from skindx.evaluation.adapt import adapt as adapt_bundle
    from skindx.evaluation.adapt import adapted_table
    from skindx.models.adaptation import CANNOT

    with progress_bars() as progress:
        adapted = adapt_bundle(
            bundle,
            local,
            out,
            split=split,
            keep_mix=keep_mix,
            expect=expect,
            progress=partial(progress, "adapt"),
        )
    console().print(adapted_table(adapted))
    if adapted.seen:
        print(f"{adapted.seen} images were left out: the bundle was made from them or copies")
    for note in adapted.adaptation.notes:
        print(note)
    print(CANNOT)
    print(f"bundle: {out}, digest {adapted.bundle.digest}")


features = typer.Typer(
    no_args_is_help=True,
    help=(
        "Evaluate the embeddings of a tower that may not leave its place.\n\n"
        "The tower is run where it is; its embeddings are enough for heads, thresholds and report."
    ),
)


@features.callback()
def _group() -> None:
    pass


@features.command("evaluate")
def evaluate_verb(
    embeddings: Annotated[
        Path,
        typer.Argument(
            help="A .parquet with the columns file or sha256, and embedding; a .npy with --files."
        ),
    ],
    dataset: Annotated[Path, typer.Argument(help="The dataset of the images.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    files: Annotated[
        Path | None,
        typer.Option(
            metavar="NAMES",
            help="For .npy: the file name or SHA-256 of each row, a line a row (.txt), or in a "
            "column file or sha256 (.csv).",
        ),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="linear, mlp, knn or prototypes; may be repeated; default: all."),
    ] = None,
    tower: Annotated[
        str | None,
        typer.Option(help="The tower that made them: local-dir:FOLDER, hf-hub:ORG/NAME, a bundle."),
    ] = None,
    made_by: Annotated[
        str, typer.Option(metavar="NAME", help="What the tower is called, where it is not here.")
    ] = "",
    bundle: Annotated[
        BundleText | None,
        typer.Option(
            parser=BundleText,
            metavar="BUNDLE",
            help="Evaluate the heads of this bundle instead of fitting new ones.",
        ),
    ] = None,
    split: Annotated[Part, typer.Option(help="The images to score.")] = "test",
) -> None:
    """Fit heads on embeddings and write OUT/bundle, OUT/evaluation and OUT/heads.json.

    Rows are joined to the dataset's images by file name or SHA-256, never by their order. Heads
    are fitted on train, one is chosen on val with its temperature, calibration fits the conformal
    sets, the urgent thresholds and the out-of-distribution check, and test is scored. Without
    --tower the bundle says what it lacks and diagnoses no photo.

    Example: skindx features evaluate tower.parquet runs/mine/data --out runs/tower

    Of an array: skindx features evaluate tower.npy data --files names.txt --out runs/tower
    """
    from skindx.core.progress import progress_bars
    from skindx.evaluation.evaluation_report import print_table
    from skindx.evaluation.features import evaluate_embeddings, heads_table

    with progress_bars() as progress:
        result = evaluate_embeddings(
            embeddings,
            dataset,
            out,
            names=files,
            heads=head or (),
            tower=tower,
            made_by=made_by,
            bundle=bundle,
            split=split,
            progress=partial(progress, "evaluate"),
        )
    if result.heads:
        console().print(heads_table(result.heads))
    print_table(result.evaluation, console())
    print(f"report: {result.folder / 'report.html'}")
    print(f"bundle: {result.bundle.path}, digest {result.bundle.digest}")
    if lacking := result.bundle.spec.embeddings:
        print(f"the bundle {lacking.lacks}")


def compare(
    first: Annotated[
        BundleText,
        typer.Argument(
            parser=BundleText, metavar="A", help="The folder of an evaluation, or a bundle."
        ),
    ],
    second: Annotated[BundleText, typer.Argument(parser=BundleText, metavar="B", help="The same.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; default: comparison/ beside A."),
    ] = None,
    *,
    dataset: Annotated[
        Path | None, typer.Option(help="Dataset to evaluate bundles on; not for evaluations.")
    ] = None,
    split: Annotated[
        Part, typer.Option(help="Split of --dataset; all for an external dataset.")
    ] = "test",
) -> None:
    """Compare two predictors on the same images, overall and by class, skin type and source.

    Differences are A minus B, with 95 % intervals by paired bootstrap over groups. McNemar's exact
    test uses the images that only one of the two classifies correctly. It writes comparison.json
    and comparison.html.

    Example: skindx compare runs/a/evaluation runs/b/evaluation --out runs/a-against-b

    Of bundles: skindx compare runs/a/bundle runs/b/bundle --dataset runs/mine/data
    """
    from skindx.core.progress import progress_bars
    from skindx.evaluation.predictor_comparison import PAGE, compare_folders, print_comparison
    from skindx.models.bundle.installed import beside

    folder = out or beside(first, "comparison")
    with progress_bars() as progress:
        comparison = compare_folders(
            first, second, folder, dataset=dataset, split=split, progress=progress
        )
    print_comparison(comparison, console())
    print(f"page: {folder / PAGE}")


def leak(
    first: Annotated[
        BundleText,
        typer.Argument(parser=BundleText, metavar="A", help="A dataset folder, or a bundle."),
    ],
    second: Annotated[BundleText, typer.Argument(parser=BundleText, metavar="B", help="The same.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the certificate.")],
    *,
    fail: Annotated[
        bool, typer.Option("--fail", help="End with exit code 1 if there are copies.")
    ] = False,
) -> None:
    """Certify which images of A are copies of images of B: same file, same pixels, or near copy.

    Near copies are other encodings, sizes and turns, crops, and second photos that show the same.
    A bundle has fingerprints of the images that it was made from. It writes leak.json, leak.html
    and pairs.csv, with a bound for links by chance and a list of what could not be compared.

    Example: skindx leak runs/mine/bundle other/data --out runs/mine/leak
    """
    from skindx.core.progress import progress_bars
    from skindx.evaluation.leak import PAGE, verdict
    from skindx.evaluation.leak import leak as compare

    with progress_bars() as progress:
        certificate = compare(first, second, out, progress=progress)
    for count in certificate.counts:
        if count.pairs:
            print(f"{count.kind}: {count.pairs} pairs")
    print("\n".join([*certificate.not_compared, verdict(certificate)]))
    print(f"page: {out / PAGE}")
    if fail and certificate.copied_a:
        raise typer.Exit(1)
