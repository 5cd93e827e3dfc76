"""`skindx dedup`: embeddings for a second look."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skindx.cli.options import Sets
from skindx.core.errors import UserError

if TYPE_CHECKING:
    from skindx.data.image_tables import Embeddings

dedup = typer.Typer(
    name="dedup",
    no_args_is_help=True,
    help="Embed images, for near duplicates and reviews.",
)

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
        Path | None, typer.Option(help="Use a bundle's first member instead of weights.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The network's settings (YAML).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Default: DATASET/embeddings.parquet, or label_features.parquet with layers=all.",
        ),
    ] = None,
    sets: Sets = None,
) -> None:
    """Write an embedding of each image: the features before the last layer of a network.

    The network is a timm model, by default mobilenetv2_100 (--set model=NAME). `skindx audit
    --labels` and `--off-topic` use the table. A recipe can use it to confirm near duplicates:
    `dedup: {embeddings: {path: TABLE}}`. --set layers=all and --set views=8 write features of all
    layers instead, for the label review alone: configs/label-features.yaml has both.

    Example: skindx dedup embed runs/mine/data --weights mobilenetv2.safetensors
    """
    from skindx.core.progress import progress_bars

    with progress_bars() as progress:
        made = embed_dataset(
            dataset, weights, bundle, sets or [], partial(progress, "embed"), config=config, out=out
        )
    print(f"{len(made.sha256s)} images, {made.vectors_ND.shape[1]} numbers each: {made.model}")


def embed_dataset(
    dataset: Path,
    weights: Path | None,
    bundle: Path | None,
    sets: list[str],
    progress: Callable[[int, int], None],
    *,
    config: Path | None = None,
    out: Path | None = None,
) -> "Embeddings":
    """Embed with weights, a file of settings, or a bundle, whichever is given. Raises UserError."""
    from skindx.data.image_tables import EMBEDDINGS, LABEL_FEATURES
    from skindx.review.image_embeddings import EmbedSettings, embed_with_bundle
    from skindx.review.image_embeddings import embed as embed_images

    if (weights is None and config is None) == (bundle is None):
        raise UserError(
            "embeddings need a trained network: give one of --weights, --config and --bundle."
        )
    if bundle:
        return embed_with_bundle(dataset, bundle, out or dataset / EMBEDDINGS, progress)
    if weights:
        sets = [*sets, f"weights={json.dumps(str(weights))}"]
    settings = EmbedSettings.load(config, sets)
    table = LABEL_FEATURES if settings.layers == "all" else EMBEDDINGS
    return embed_images(dataset, settings, out or dataset / table, progress)
