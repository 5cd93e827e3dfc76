"""Sparse exchanges: error feedback, momentum correction, warm-up of the density; top-k, gTop-k."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from skindx.comm.exchange import Exchange, State, take_over
from skindx.comm.fabric import Fabric, GradientBuffer, Transfer
from skindx.comm.sparse_vectors import Sparse, add_all, add_and_select, merge
from skindx.comm.topk import SparseSettings
from skindx.core.machine import require_extra
from skindx.core.state_checks import UnfitStateError

# M = elements of the gradient, K = elements that are sent

PutBack = tuple[Sparse, float]
"""What a merge dropped, and this rank's share of it."""


class SparseExchange(Exchange):
    """Each rank sends the k largest elements of gradient plus residual, and keeps the rest.

    With residual r_p and gradient g_p of rank p, and the update u that all ranks take, no mass is
    lost: the sum over p of r_p after the step, plus P u, is the sum over p of r_p + g_p.
    """

    remembers = True

    def __init__(self, settings: SparseSettings) -> None:
        self.settings = settings
        self.step = 0

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Start with empty residuals."""
        super().attach(fabric, gradients, steps_per_epoch)
        if fabric.device.type == "cpu":
            _check_kernels()
        self.residual_M = torch.zeros_like(gradients.flat)
        self._velocity_M = torch.zeros_like(gradients.flat) if self.settings.momentum else None

    @abstractmethod
    def agree(self, local: Sparse, k: int) -> tuple[Sparse, list[PutBack]]:
        """Return the sum that all ranks agree on, and what goes back into this rank's residual.

        The sum is not finite where any rank's `local` is poison.
        """

    @property
    def density(self) -> float:
        """The density of the next step."""
        epoch, warmup = self.step // self.steps_per_epoch, self.settings.warmup
        return warmup[epoch] if epoch < len(warmup) else self.settings.density

    def launch(self, group: int) -> None:
        """Wait for `finish`: the largest elements are only known when all are there."""

    def finish(self) -> bool:
        """Select, agree, and keep what was not sent."""
        flat_M = self.gradients.flat
        k = min(len(flat_M), math.ceil(self.density * len(flat_M)))
        velocity_M = self._accelerated(flat_M)
        selected = add_and_select(flat_M, self.residual_M, k)
        sent = selected or Sparse.poison(k, flat_M.device)
        agreed, put_back = self.agree(sent, k)
        if not agreed.finite:
            return False
        self._keep(sent, put_back)
        if velocity_M is not None:
            velocity_M[sent.at_K.long()] = 0  # its momentum has been sent as well
            self._velocity_M = velocity_M
        agreed.scatter(self.gradients.flat, 1 / self.fabric.world)
        self.step += 1
        return True

    def _accelerated(self, flat_M: Tensor) -> Tensor | None:
        """Put the velocity in the gradient's place and return it."""
        if self._velocity_M is None:
            return None
        velocity_M = torch.add(flat_M, self._velocity_M, alpha=self.settings.momentum)
        flat_M.copy_(velocity_M)
        return velocity_M

    def _keep(self, sent: Sparse, put_back: list[PutBack]) -> None:
        """Make the sum, without what was sent, the residual, and the old residual the gradient.

        The two buffers change places: nothing is copied.
        """
        residual_M = self.gradients.replace(self.residual_M.zero_())
        residual_M[sent.at_K.long()] = 0
        for dropped, share in put_back:
            dropped.scatter(residual_M, share)
        self.residual_M = residual_M

    def state_dict(self) -> State:
        """Return residual, velocity, and how many steps were taken."""
        state: State = {"step": self.step, "residual": self.residual_M}
        if self._velocity_M is not None:
            state["velocity"] = self._velocity_M
        return state

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take residual, velocity and the place in the warm-up over."""
        step = states[0].get("step")
        if type(step) is not int or step < 0:
            raise UnfitStateError("exchange/step is no number of steps")
        self.step = step
        take_over(self.residual_M, states, "residual", self.fabric)
        if self._velocity_M is not None:
            take_over(self._velocity_M, states, "velocity", self.fabric)


def _check_kernels() -> None:
    require_extra("train", "numba", purpose="a sparse exchange on a CPU")
    import skindx.comm.kernels  # noqa: F401 (here rather than in the first step)


class TopK(SparseExchange):
    """Top-k S-SGD (Aji and Heafield 2017, arXiv 1704.05021).

    Each rank sends 8 (P - 1) k bytes.
    """

    def agree(self, local: Sparse, k: int) -> tuple[Sparse, list[PutBack]]:
        """Return the sum of all ranks' elements, added in rank order."""
        messages = self.fabric.all_gather(local.pack())
        parts = [Sparse.unpack(message) for message in messages]
        if not all(part.finite for part in parts):
            return Sparse.poison(k, local.at_K.device), []
        return add_all(parts), []


class GTopK(SparseExchange):
    """gTop-k S-SGD (Shi et al. 2019, arXiv 1901.04359), with two corrections.

    Partners exchange and merge alike in log2 P rounds of 8 k bytes, where the paper reduces along
    a tree and broadcasts, which takes twice as many. And what a merge drops is put back: the paper
    keeps only what a rank itself did not send, and an index that one subtree dropped while another
    carried it into the result was lost.
    """

    def agree(self, local: Sparse, k: int) -> tuple[Sparse, list[PutBack]]:
        """Merge with one partner a round.

        The 2^r ranks of a group hold the same sum after round r, and dropped the same of it, so
        each puts back a 2^r-th. Ranks beyond the largest power of two give their elements to a
        partner first, which puts back all that this merge drops, and get the result last.
        """
        rank, world = self.fabric.rank, self.fabric.world
        power = 1 << (world.bit_length() - 1)
        if rank >= power:
            result = self._expect(k, rank - power)
            self.fabric.swap([Transfer(local.pack(), rank - power)], [])
            return self._received(result), []
        partner = rank + power if rank + power < world else None
        first = None if partner is None else self._expect(k, partner)
        peers = [rank ^ (1 << bit) for bit in range(power.bit_length() - 1)]
        messages = [self._expect(k, peer) for peer in peers]
        held, put_back = local, []
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
