"""Top-k: every rank gets every other's k largest elements (all-gather) and adds them up."""

from typing import Literal

from skindx.comm.feedback import PutBack, SparseExchange, SparseSettings
from skindx.comm.sparse import Sparse, add_all


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
        parts = [Sparse.unpack(message) for message in messages]
        if not all(part.finite for part in parts):
            return Sparse.poison(k, own.at_K.device), []
        return add_all(parts), []
