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
        if rank >= power:
            result = self._expect(k, rank - power)
            self.fabric.swap([Transfer(own.pack(), rank - power)], [])
            return self._received(result), []
        partner = rank + power if rank + power < world else None
        first = None if partner is None else self._expect(k, partner)
        peers = [rank ^ (1 << bit) for bit in range(power.bit_length() - 1)]
        messages = [self._expect(k, peer) for peer in peers]
        held, put_back = own, []
        if first:
            held, dropped = merge(held, self._received(first), k)
            put_back.append((dropped, 1.0))
        for number, (peer, message) in enumerate(zip(peers, messages, strict=True), start=1):
            self.fabric.swap([Transfer(held.pack(), peer)], [message])
            held, dropped = merge(held, Sparse.unpack(message.tensor), k)
            put_back.append((dropped, 0.5**number))
        if partner is not None:
            self.fabric.swap([Transfer(held.pack(), partner)], [])
        return held, put_back

    def _expect(self, k: int, peer: int) -> Transfer:
        message = torch.empty(2 * k, dtype=torch.int32, device=self.fabric.device)
        return self.fabric.expect(Transfer(message, peer))

    def _received(self, message: Transfer) -> Sparse:
        self.fabric.swap([], [message])
        return Sparse.unpack(message.tensor)
