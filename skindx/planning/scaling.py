"""Times of a profile scaled to more or fewer images, or to another speed."""

from skindx.planning.profile import Profile


def compute_scale(profile: Profile, images: float) -> float:
    """Return what the layers' times are multiplied by for another batch.

    A line through the whole steps that were timed; with fewer than two, time is proportional.
    """
    points = sorted(profile.at, key=lambda point: point.batch)
    if len(points) < 2 or points[0].batch == points[-1].batch:
        return images / profile.batch
    first, last = points[0], points[-1]
    slope = (last.compute_s - first.compute_s) / (last.batch - first.batch)
    if slope <= 0:
        return images / profile.batch
    seconds = first.compute_s + slope * (images - first.batch)
    known = first.compute_s + slope * (profile.batch - first.batch)
    return max(seconds, 0.2 * first.compute_s * images / first.batch) / known


def scaled(profile: Profile, compute: float, *, update: float) -> Profile:
    """Return a profile with its times multiplied: `compute` of all layers, `update` of the update.

    A layer that was never timed stays without a time.
    """
    layers = tuple(
        layer.model_copy(
            update={
                key: None if getattr(layer, key) is None else getattr(layer, key) * compute
                for key in ("forward_s", "backward_s")
            }
        )
        for layer in profile.layers
    )
    at = tuple(
        point.model_copy(update={"compute_s": point.compute_s * compute}) for point in profile.at
    )
    again = profile.checkpointing
    return profile.model_copy(
        update={
            "layers": layers,
            "at": at,
            "update_s": profile.update_s * update,
            "checkpointing": again
            and again.model_copy(update={"compute_s": again.compute_s * compute}),
        }
    )
