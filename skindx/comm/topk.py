"""Top-k: every rank gets every other's k largest elements (all-gather) and adds them up."""

from typing import Literal

import torch

from skindx.comm.feedback import PutBack, SparseExchange, SparseSettings
from skindx.comm.sparse import Sparse


class TopKSettings(SparseSettings):
    """All-gather of each rank's largest elements."""

    kind: Literal["topk"] = "topk"


class TopK(SparseExchange):
    """Top-k S-SGD (Aji and Heafield 2017, arXiv 1704.05021).

    Each rank sends 8 (P - 1) k bytes.
    """

    def agree(self, own: Sparse, k: int) -> tuple[Sparse, list[PutBack]]:
        """Return the sum of all ranks' elements, added in rank order."""
        messages = self.fabric.all_gather(own.pack())
        parts = [Sparse.unpack(each) for each in messages]
        if not all(part.finite for part in parts):
            return Sparse.poison(k, own.at_K.device), []
        at_PK = torch.cat([part.at_K for part in parts]).long()
        at_N, place_PK = torch.unique(at_PK, return_inverse=True)
        values_N = torch.zeros(len(at_N), device=at_N.device)
        for part, place_K in zip(parts, place_PK.split(k), strict=True):
            values_N[place_K] += part.values_K
        return Sparse(at_N.int(), values_N), []
