"""Cuts of a network into stages of a pipeline, and of a batch into micro-batches."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from skindx.core.cost.assignment import cut
from skindx.core.errors import UserError
from skindx.training.config.parallel import ModelSettings
from skindx.training.parallel.sharding.pieces import Piece, Pieces, pieces_of

WHAT = "engine.parallel.kind=model"

MICRO_BATCHES = 4
"""For each stage, where the images suffice: a fifth of a step is waiting at most."""


def check_stages(net: nn.Module, image: Tensor, parallel: ModelSettings, images: int) -> None:
    """Raise UserError for a network that cannot be placed so, with `images` in a pipeline."""
    counts_of(pieces_of(net, image), parallel)
    micro_batches_of(parallel, images)


def counts_of(found: Pieces, parallel: ModelSettings) -> list[int]:
    """Return how many pieces each stage has. Raises UserError for more stages than pieces."""
    count, pieces = parallel.stages, found.pieces
    if count > len(pieces):
        raise UserError(
            f"{WHAT}: this network has {len(pieces)} pieces with a single tensor between two of "
            f"them, which are too few for {count} stages; lower engine.parallel.stages, or choose "
            "another model."
        )
    if not parallel.starts:
        return cut([piece.operations for piece in pieces], count)
    begins = [0, *(_place_of(name, pieces) for name in parallel.starts), len(pieces)]
    counts = [end - begin for begin, end in pairwise(begins)]
    if min(counts) < 1:
        raise UserError(
            f"{WHAT}: starts={', '.join(parallel.starts)} are not one piece of the network after "
            "the other, or two are in the same piece; name layers further apart, in their order."
        )
    return counts


def micro_batches_of(parallel: ModelSettings, images: int) -> int:
    """Return how many micro-batches a pipeline's images make. Raises UserError for too many."""
    if parallel.micro_batches == "auto":
        return max(1, min(MICRO_BATCHES * parallel.stages, images // 2))
    if parallel.micro_batches > images:
        raise UserError(
            f"{WHAT}: micro_batches={parallel.micro_batches} are more than the {images} images of "
            "a pipeline in a step; lower them, or raise recipe.batch."
        )
    return parallel.micro_batches


def _place_of(name: str, pieces: Sequence[Piece]) -> int:
    """Return the piece that has a layer: by its name, or by that of a block that it begins."""
    for number, piece in enumerate(pieces):
        for layer in piece.layers:
            if f"{name}.".startswith(f"{layer}.") or f"{layer}.".startswith(f"{name}."):
                return number
    raise UserError(
        f"{WHAT}: starts names {name}, which is no layer of this network; the stages can begin at "
        f"{', '.join(first_layer([piece]) for piece in pieces[1:])}."
    )


def first_layer(stage: Sequence[Piece]) -> str:
    """Return the name of the layer that a stage begins at."""
    return next((layer for piece in stage for layer in piece.layers), "an operation")
