"""`skindx audit`: what a person should look at; `skindx dedup embed`: the embeddings for it."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skindx.cli.options import BundleText, Sets
from skindx.core.errors import UserError
from skindx.core.machine import require_extra

if TYPE_CHECKING:
    from skindx.core.progress import Progress
    from skindx.review.privacy_audit import AuditSummary


def audit(
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    *,
    labels: Annotated[bool, typer.Option("--labels", help="Review the labels instead.")] = False,
    off_topic: Annotated[
        bool, typer.Option("--off-topic", help="Look for images unlike all others instead.")
    ] = False,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="With --labels or --off-topic: a table of `skindx dedup embed`."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="With --off-topic: flag images from this score on; default: 3."),
    ] = None,
    seed: Annotated[int, typer.Option(help="With --labels: seed of the ranking.")] = 0,
    workers: Annotated[int, typer.Option(help="Number of processes; 0: one for each core.")] = 0,
    sets: Sets = None,
) -> None:
    """Flag images that a person should check; nothing is removed.

    Without an option it looks for faces, text and intimate regions, with models that run on this
    machine; nothing leaves it. With --labels it ranks doubtful labels, and with --off-topic it
    flags images whose embedding is unusual. Flags are written to DATASET/flags.parquet; decide on
    them with `skindx review`. An interrupted audit resumes. --set changes thresholds (--set
    face=0.4).

    Example: skindx audit runs/mine/data && skindx audit runs/mine/data --labels
    """
    from skindx.core.progress import progress_bars
    from skindx.data.report.dataset_report import renew_report
    from skindx.data.summary import as_typed

    if labels and off_topic:
        raise UserError(
            "--labels and --off-topic cannot be given together; run one after the other."
        )
    if embeddings and not (labels or off_topic):
        raise UserError(
            "--embeddings works only with --labels or --off-topic; add one of these two options."
        )
    if threshold is not None and not off_topic:
        raise UserError(
            "--threshold works only with --off-topic; add --off-topic, or remove --threshold."
        )
    with progress_bars() as progress:
        if labels:
            lines = _labels(dataset, embeddings, seed)
        elif off_topic:
            lines = _off_topic(dataset, embeddings, threshold)
        else:
            lines = _privacy(dataset, workers, sets or [], progress)
    if labels or off_topic:
        renew_report(dataset)  # it counts flags
    print("\n".join(as_typed(line, dataset) for line in lines))


def _privacy(dataset: Path, workers: int, sets: list[str], progress: "Progress") -> list[str]:
    from skindx.review.privacy_audit import PrivacySettings
    from skindx.review.privacy_audit import audit as look

    settings = PrivacySettings.load(None, sets)
    return [*summary_lines(look(dataset, settings, workers=workers, progress=progress))]


def _off_topic(dataset: Path, embeddings: Path | None, threshold: float | None) -> list[str]:
    from skindx.data.embedding_files import EMBEDDINGS, read_embeddings
    from skindx.review.image_embeddings import THRESHOLD
    from skindx.review.image_embeddings import off_topic as flag

    least = THRESHOLD if threshold is None else threshold
    if not least > 0:
        raise UserError(
            f"--threshold is {least:g}, but it must be above 0; give a larger number (0 is the "
            "distance of the median image)."
        )
    table = read_embeddings(embeddings or dataset / EMBEDDINGS)
    flagged, scored = flag(dataset, table, least)
    return [
        f"{flagged} of {scored} images are unusual (score {least:g} or more) by {table.model}; "
        "`skindx review DATASET` shows them."
    ]


def _labels(dataset: Path, embeddings: Path | None, seed: int) -> list[str]:
    from skindx.data.embedding_files import label_table, read_embeddings
    from skindx.data.manifest import read_manifest
    from skindx.review.label_doubts import TABLE, review_labels, write_review

    require_extra("audit", "cleanlab", purpose="the label review")
    records = read_manifest(dataset)
    table = read_embeddings(embeddings or label_table(dataset))
    review = review_labels(records, table, seed=seed)
    write_review(dataset, review)
    return [
        f"{review.suspected} of {review.images} labels are in doubt; the first "
        f"{len(review.doubts)} are listed in {dataset / TABLE}; `skindx review DATASET` shows "
        "them.",
        f"Images of other groups agree with {100 * review.accuracy:.1f} % of the labels.",
    ]


dedup = typer.Typer(name="dedup", no_args_is_help=True, help="Embed images, for reviews.")

Dataset = Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")]


@dedup.callback()
def _group() -> None:
    """Keep `embed` a verb of its own."""


@dedup.command()
def embed(
    dataset: Dataset,
    *,
    weights: Annotated[
        Path | None, typer.Option(help="Weights (safetensors or a plain state dict).")
    ] = None,
    bundle: Annotated[
        BundleText | None,
        typer.Option(
            parser=BundleText,
            metavar="BUNDLE",
            help="Use a bundle's first member instead of weights.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The network's settings (YAML).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Default: embeddings or label_features.parquet."),
    ] = None,
    sets: Sets = None,
) -> None:
    """Write an embedding of each image: the features before the last layer of a network.

    The network is a timm model, by default mobilenetv2_100 (--set model=NAME). `skindx audit
    --labels` and `--off-topic` use the table. --set layers=all and --set views=8 write features of
    all layers instead, for the label review alone: configs/label-features.yaml has both.

    Example: skindx dedup embed runs/mine/data --weights mobilenetv2.safetensors
    """
    from skindx.core.progress import progress_bars
    from skindx.data.embedding_files import EMBEDDINGS, LABEL_FEATURES
    from skindx.review.image_embeddings import EmbedSettings, embed_with_bundle
    from skindx.review.image_embeddings import embed as embed_images

    if (weights is None and config is None) == (bundle is None):
        raise UserError(
            "`skindx dedup embed` needs exactly one trained network; give --weights or --config, "
            "or give --bundle alone."
        )
    given = [f"weights={json.dumps(str(weights))}"] if weights else []
    with progress_bars() as progress:
        report = partial(progress, "embed")
        if bundle:
            made = embed_with_bundle(dataset, bundle, out or dataset / EMBEDDINGS, report)
        else:
            settings = EmbedSettings.load(config, [*(sets or []), *given])
            table = LABEL_FEATURES if settings.layers == "all" else EMBEDDINGS
            made = embed_images(dataset, settings, out or dataset / table, report)
    print(f"{len(made.sha256s)} images, {made.vectors_ND.shape[1]} numbers each: {made.model}")


def summary_lines(summary: "AuditSummary") -> Iterable[str]:
    """Tell an audit in plain sentences."""
    yield f"{summary.images} images, {summary.examined} of them examined now."
    for reason, count in summary.flagged.items():
        yield f"  {count} flagged: {reason}"
    if summary.dermoscopic:
        yield (
            f"  {summary.dermoscopic} dermoscopic images resemble intimate regions and are not "
            f"flagged as such."
        )
    if summary.waiting:
        yield (
            f"{summary.waiting} images wait for a person's decision (`skindx review DATASET`: "
            f"keep, withhold or remove); until then they are not published."
        )
