"""gTop-k: the k largest elements of the sum over all ranks, merged along a butterfly."""

from typing import Literal

import torch

from skindx.comm.fabric import Transfer
from skindx.comm.feedback import PutBack, SparseExchange, SparseSettings
from skindx.comm.sparse import Sparse, merge


class GTopKSettings(SparseSettings):
    """Global top-k by recursive doubling."""

    kind: Literal["gtopk"] = "gtopk"


class GTopK(SparseExchange):
    """gTop-k S-SGD (Shi et al. 2019, arXiv 1901.04359), with two corrections.

    Partners exchange and merge alike in log2 P rounds of 8 k bytes, where the paper reduces along
    a tree and broadcasts, which takes twice as many. And what a merge drops is put back: the paper
    keeps only what a rank itself did not send, and an index that one subtree dropped while another
    carried it into the result was lost.
    """

    def agree(self, own: Sparse, k: int) -> tuple[Sparse, list[PutBack]]:
        """Merge with one partner a round.

        The 2^r ranks of a group hold the same sum after round r, and dropped the same of it, so
        each puts back a 2^r-th. Ranks beyond the largest power of two give their elements to a
        partner first, which puts back all that this merge drops, and get the result last.
        """
        rank, world = self.fabric.rank, self.fabric.world
        power = 1 << (world.bit_length() - 1)
        put_back: list[PutBack] = []
        if rank >= power:
            self.fabric.swap([Transfer(own.pack(), rank - power)], [])
            return self._receive(k, rank - power), []
        partner = rank + power if rank + power < world else None
        held = own
        if partner is not None:
            held, dropped = merge(held, self._receive(k, partner), k)
            put_back.append((dropped, 1.0))
        for bit in range(power.bit_length() - 1):
            held, dropped = merge(held, self._swap(held, rank ^ (1 << bit)), k)
            put_back.append((dropped, 0.5 ** (bit + 1)))
        if partner is not None:
            self.fabric.swap([Transfer(held.pack(), partner)], [])
        return held, put_back

    def _receive(self, k: int, peer: int) -> Sparse:
        message = torch.empty(2 * k, dtype=torch.int32, device=self.fabric.device)
        self.fabric.swap([], [Transfer(message, peer)])
        return Sparse.unpack(message)

    def _swap(self, held: Sparse, peer: int) -> Sparse:
        message = held.pack()
        theirs = torch.empty_like(message)
        self.fabric.swap([Transfer(message, peer)], [Transfer(theirs, peer)])
        return Sparse.unpack(theirs)
