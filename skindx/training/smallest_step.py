"""Check that the smallest step of a training has as many images as its batch norms need."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.training.config.parallel import ModelSettings, TensorSettings
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.feeding.batches import steps_of
from skindx.training.feeding.visits import Visits
from skindx.training.hopping.partitions import Partitions
from skindx.training.parallel.sharding.cutting import micro_batches_of
from skindx.training.parallel.sharding.sizes import sizes_of


def check_smallest_step(
    settings: TrainSettings,
    member: MemberSettings,
    classifier: nn.Module,
    learned: Sequence[Record],
    *,
    ranks: int = 1,
    partitions: Partitions | None = None,
) -> None:
    """Raise UserError where a network would normalise one image alone, and cannot.

    `classifier` has no memory (`shapes_only`); it learns from the images `learned` on so many
    `ranks`, or visits `partitions`. Steps differ by an image: one of 3, in a training with a batch
    of 4, leaves a single image to one of two ranks.
    """
    recipe = settings.recipe_of(member)
    synchronised = settings.engine.sync_batch_norm and ranks > 1
    if member.trunk == "frozen" or synchronised:
        return

    def least(batch: int) -> int:
        if partitions:
            return _least_of_visits(partitions, learned, batch) // recipe.accumulate
        return _least_at_once(settings, len(learned), batch, ranks, recipe.accumulate)

    if least(recipe.batch) > 1:
        return
    side = min(member.preprocess.size, recipe.resize.start if recipe.resize else 2**31)
    if takes_one_image(classifier, side):
        return
    larger = next(
        (size for size in range(recipe.batch + 1, len(learned) + 1) if least(size) > 1), 0
    )
    divided = {
        "engine.ranks": ranks,
        "recipe.accumulate": recipe.accumulate,
        "engine.parallel.micro_batches": 2 if settings.engine.parallel.kind == "model" else 1,
    }
    lower = " or ".join(name for name, parts in divided.items() if parts > 1)
    advice = [f"set recipe.batch={larger}"] if larger else []
    advice += [f"lower {lower}"] if lower else []
    raise UserError(
        f"member {member.name}: its {len(learned)} training images in steps of about "
        f"recipe.batch={recipe.batch} leave a single one to a rank at times, and a batch norm of "
        f"{member.model} needs two; {', or '.join(advice)}."
    )


def _least_of_visits(partitions: Partitions, learned: Sequence[Record], batch: int) -> int:
    owner_N = partitions.owner_N(learned)
    count_P = np.bincount(owner_N, minlength=partitions.count)
    steps_P = Visits(owner_N, partitions.count).steps(batch)
    return min(int(count) // steps for count, steps in zip(count_P, steps_P, strict=True))


def _least_at_once(
    settings: TrainSettings, images: int, batch: int, ranks: int, pieces: int
) -> int:
    """Return the fewest images that a batch norm sees at once on `ranks` ranks."""
    steps, parallel = steps_of(images, batch), settings.engine.parallel
    shares = sizes_of(images // steps, ranks)
    if settings.loader.sharded is True:
        shares = (images // ranks // steps,) * ranks
    together = 1
    if isinstance(parallel, TensorSettings):
        together = parallel.size
    elif isinstance(parallel, ModelSettings):
        together = parallel.stages
    rows = sum(share // pieces for share in shares[-together:])
    if not isinstance(parallel, ModelSettings):
        return rows
    pipelines = max(1, ranks // parallel.stages)
    micro = micro_batches_of(parallel, batch // pieces // pipelines)
    return rows // max(1, min(micro, rows))


def takes_one_image(classifier: nn.Module, side: int) -> bool:
    """Tell whether a network without memory can be trained on one image of a side."""
    classifier.train()
    try:
        with torch.no_grad():
            classifier(torch.zeros(1, side, side, 3, dtype=torch.uint8, device="meta"))
    except ValueError as error:
        return "more than 1 value per channel" not in str(error)
    except Exception:
        return True
    return True
