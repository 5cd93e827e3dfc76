"""A network's map as places: rows and columns of a photo, whatever its layout in memory."""

from torch import Tensor, nn

# N = photos, D = channels, h, w = places of a map, T = tokens


def places(map_: Tensor, net: nn.Module) -> Tensor:
    """Return a map as N x D x h x w, whether it is that, channels-last, or tokens N x T x D."""
    if map_.ndim == 3:
        rows, columns = _grid(map_.shape[1], net)
        own = map_[:, map_.shape[1] - rows * columns :]  # class tokens come first
        return own.transpose(1, 2).reshape(len(own), -1, rows, columns)
    channels = getattr(net, "num_features", map_.shape[1])
    if map_.shape[1] != channels and map_.shape[-1] == channels:
        return map_.permute(0, 3, 1, 2)
    return map_


def _grid(tokens: int, net: nn.Module) -> tuple[int, int]:
    """Return rows and columns of the patches among so many tokens."""
    prefix = getattr(net, "num_prefix_tokens", 0)
    rows, columns = getattr(getattr(net, "patch_embed", None), "grid_size", (0, 0))
    if rows and rows * columns in (tokens, tokens - prefix):
        return rows, columns
    side = round((tokens - prefix) ** 0.5)  # halved on its way, or of a stem without a grid
    if side * side != tokens - prefix:
        side = int(tokens**0.5)
    return side, side
