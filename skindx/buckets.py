"""Cut tensors, in the order in which backward makes them, into groups that are sent together."""

from collections.abc import Sequence

MB = 1 << 20


def fixed_buckets(
    sizes_bytes: Sequence[int], bucket_mb: float, first_mb: float | None = None
) -> list[int]:
    """Return how many tensors each bucket has; one is closed once it holds `bucket_mb`.

    With `first_mb` the first one is closed earlier, so that sending begins early: PyTorch's
    DistributedDataParallel takes 1 MB, then 25 MB.
    """
    groups, count, held = [], 0, 0
    limit = (bucket_mb if first_mb is None else first_mb) * MB
    for size in sizes_bytes:
        count, held = count + 1, held + size
        if held >= limit:
            groups.append(count)
            count, held, limit = 0, 0, bucket_mb * MB
    return [*groups, count] if count else groups
