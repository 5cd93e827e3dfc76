"""Every rank's object on every rank, sent in pieces that gloo copies without OpenMP.

gloo copies what arrives on threads of its own, and torch copies many numbers with OpenMP, which
keeps a team of threads for each of gloo's from then on. Once there are more of them than
processors, OpenMP puts threads to sleep between parallel loops: on two cores, a step of a small
network takes twice as long.
"""

import pickle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

_PIECE = 2**14
"""Numbers that are sent at once: half of those from which torch copies with OpenMP."""

# P = ranks, N = numbers


def gather_objects(value: Any, ranks: int, device: torch.device) -> list[Any]:
    """Return the value of each of all ranks, in their order; every rank calls this."""
    if ranks == 1:
        return [value]
    if device.type != "cpu":
        values: list[Any] = [None] * ranks
        dist.all_gather_object(values, value)
        return values
    own = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    sizes_P = _gathered(torch.tensor([len(own)]), ranks)[:, 0].tolist()
    # As words of eight bytes, for there are fewer of them.
    padded = own.ljust(-(-max(sizes_P) // 8) * 8, b"\0")
    own_N = torch.from_numpy(np.frombuffer(padded, np.int64).copy())
    pieces = torch.split(own_N, _PIECE)
    whole_PN = torch.cat([_gathered(piece_N, ranks) for piece_N in pieces], dim=1)
    return [
        pickle.loads(row_N.numpy().tobytes()[:size])  # noqa: S301  of a rank of this training
        for row_N, size in zip(whole_PN, sizes_P, strict=True)
    ]


def _gathered(own_N: Tensor, ranks: int) -> Tensor:
    """Return all ranks' numbers."""
    all_PN = own_N.new_empty(ranks, len(own_N))
    dist.all_gather(list(all_PN.unbind()), own_N)
    return all_PN
