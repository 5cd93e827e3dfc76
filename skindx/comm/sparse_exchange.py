"""Sparse exchanges: error feedback, momentum correction, warm-up of the density; top-k, gTop-k."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from skindx.comm.exchange import Exchange, State, take_over
from skindx.comm.fabric import Fabric, GradientBuffer, Transfer
from skindx.comm.topk import SparseSettings
from skindx.core.machine import require_extra
from skindx.core.state_checks import UnfitStateError

# Sparse gradients: what is selected of a vector, as one message, and the sum of two of them.


@dataclass(frozen=True)
class Sparse:
    """The k elements that are kept of a vector: where (int32, ascending) and what (fp32)."""

    at_K: Tensor
    values_K: Tensor

    def pack(self) -> Tensor:
        """Return one message of 8 k bytes (int32): the values' bits, then the indices."""
        return torch.cat([self.values_K.view(torch.int32), self.at_K])

    @classmethod
    def unpack(cls, message: Tensor) -> Self:
        """Undo `pack`."""
        k = len(message) // 2
        return cls(message[k:], message[:k].view(torch.float32))

    @classmethod
    def poison(cls, k: int, device: torch.device) -> Self:
        """Return what a rank sends whose gradient is not finite: it spoils every sum, on purpose.

        So all ranks learn of it from the messages that they exchange anyway.
        """
        return cls(
            torch.arange(k, dtype=torch.int32, device=device),
            torch.full((k,), float("nan"), device=device),
        )

    @property
    def finite(self) -> bool:
        """False for poison and for what came of it."""
        return bool(self.values_K.isfinite().all())

    def scatter(self, flat: Tensor, scale: float = 1.0) -> None:
        """Add the elements, times `scale`, to a whole vector."""
        values_K = self.values_K if scale == 1.0 else self.values_K * scale
        if flat.device.type == "cpu":
            # No index stands twice, so that this is an addition.
            flat.numpy()[self.at_K.numpy()] += values_K.numpy()
        else:
            flat.index_add_(0, self.at_K, values_K)


def largest(values_N: Tensor, k: int) -> Tensor:
    """Return a mask of the k largest magnitudes; among equals the first ones."""
    if k >= len(values_N):
        return torch.ones(len(values_N), dtype=torch.bool, device=values_N.device)
    magnitude_N = values_N.abs()
    if values_N.device.type == "cpu":
        from skindx.comm.kernels import keep_largest

        array = magnitude_N.numpy()
        threshold = np.partition(array, len(array) - k)[len(array) - k]
        kept_N = np.empty(len(array), dtype=np.bool_)
        keep_largest(array, threshold, k - int((array > threshold).sum()), kept_N)
        return torch.from_numpy(kept_N)
    cut = magnitude_N.kthvalue(len(values_N) - k + 1).values
    equal_N = magnitude_N == cut
    above_N = magnitude_N > cut
    return above_N | (equal_N & (equal_N.cumsum(0) <= k - above_N.sum()))


def merge(first: Sparse, second: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """Return the k largest elements of the sum of two sparse vectors, and the rest of the sum.

    `merge(a, b)` and `merge(b, a)` are equal to the bit, so that two ranks that do this for
    themselves agree. Poison stays poison.
    """
    if not (first.finite and second.finite):
        device = first.at_K.device
        none = Sparse(
            torch.empty(0, dtype=torch.int32, device=device), torch.empty(0, device=device)
        )
        return Sparse.poison(k, device), none
    at_N, values_N = _sum(first, second)
    return _split(at_N, values_N, largest(values_N, k))


def add_all(parts: Sequence[Sparse]) -> Sparse:
    """Return the sum of sparse vectors of one length, added in their order."""
    if parts[0].at_K.device.type == "cpu":
        total = parts[0]
        for part in parts[1:]:
            total = Sparse(*_sum(total, part))
        return total
    # On a GPU many small steps cost more than one large one.
    at_N, place_PK = torch.unique(torch.cat([part.at_K for part in parts]), return_inverse=True)
    values_N = torch.zeros(len(at_N), device=at_N.device)
    for part, place_K in zip(parts, place_PK.split(len(parts[0].at_K)), strict=True):
        values_N[place_K] += part.values_K
    return Sparse(at_N, values_N)


def _split(at_N: Tensor, values_N: Tensor, kept_N: Tensor) -> tuple[Sparse, Sparse]:
    if at_N.device.type != "cpu":
        other_N = ~kept_N
        return Sparse(at_N[kept_N], values_N[kept_N]), Sparse(at_N[other_N], values_N[other_N])
    from skindx.comm.kernels import split_by

    room = len(at_N) + 1
    at, rest_at = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
    values, rest_values = np.empty(room, dtype=np.float32), np.empty(room, dtype=np.float32)
    count = split_by(
        at_N.numpy(), values_N.numpy(), kept_N.numpy(), at, values, rest_at, rest_values
    )
    rest = len(at_N) - count
    return (
        Sparse(torch.from_numpy(at[:count]), torch.from_numpy(values[:count])),
        Sparse(torch.from_numpy(rest_at[:rest]), torch.from_numpy(rest_values[:rest])),
    )


def _sum(first: Sparse, second: Sparse) -> tuple[Tensor, Tensor]:
    if first.at_K.device.type == "cpu":
        from skindx.comm.kernels import merge_sorted

        room = len(first.at_K) + len(second.at_K)
        at, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
        n = merge_sorted(
            first.at_K.numpy(),
            first.values_K.numpy(),
            second.at_K.numpy(),
            second.values_K.numpy(),
            at,
            values,
        )
        return torch.from_numpy(at[:n]), torch.from_numpy(values[:n])
    both_at, inverse = torch.unique(torch.cat([first.at_K, second.at_K]), return_inverse=True)
    values_N = torch.zeros(len(both_at), device=both_at.device)
    # An index stands twice at most, and 0 + a + b does not depend on the order.
    values_N.index_add_(0, inverse, torch.cat([first.values_K, second.values_K]))
    return both_at, values_N


_SAMPLE = 1 << 16

_DENSE = 0.05
"""Density from which no threshold is guessed, as nearly every block holds a selected element."""


def add_and_select(gradient_M: Tensor, residual_M: Tensor, k: int) -> Sparse | None:
    """Add `residual_M` to `gradient_M` in place and return the k largest elements of the sum.

    Exact, and among equal magnitudes the first ones. None when the sum is not finite everywhere.
    """
    if gradient_M.device.type != "cpu":
        return _on_gpu(gradient_M, residual_M, k)
    from skindx.comm.kernels import add_and_find

    gradient, residual = gradient_M.numpy(), residual_M.numpy()
    room = min(len(gradient), 4 * k + 1024)
    guessing = k < _DENSE * len(gradient)
    threshold = _guess(gradient, residual, k) if guessing else np.float32(np.inf)
    result, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
    count, finite = add_and_find(
        gradient, gradient.view(np.int32), residual, threshold.view(np.int32), result, values
    )
    if not finite:
        return None
    if k <= count <= room:
        at_N, values_N = torch.from_numpy(result[:count]), torch.from_numpy(values[:count])
        kept_N = largest(values_N, k)
        return Sparse(at_N[kept_N], values_N[kept_N])
    return _whole(gradient_M, k)


def _guess(
    gradient: np.ndarray[tuple[int], np.dtype[np.float32]],
    residual: np.ndarray[tuple[int], np.dtype[np.float32]],
    k: int,
) -> np.float32:
    """Return a threshold that somewhat more than k elements reach, from an even sample."""
    step = max(1, len(gradient) // _SAMPLE)
    sample = np.abs(gradient[::step] + residual[::step])
    expected = k * len(sample) / len(gradient)
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if rank >= len(sample):
        return np.float32(0)
    threshold: np.float32 = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    # NaN where the sample holds one: then only NaN is found, and the sum is not finite.
    return threshold


def _whole(sum_M: Tensor, k: int) -> Sparse:
    kept_M = largest(sum_M, k)
    at_K = kept_M.nonzero().squeeze(1)
    return Sparse(at_K.int(), sum_M[at_K])


def _on_gpu(gradient_M: Tensor, residual_M: Tensor, k: int) -> Sparse | None:
    gradient_M += residual_M
    if not bool(gradient_M.isfinite().all()):
        return None
    at_K = torch.topk(gradient_M.abs(), k, sorted=False).indices.sort().values
    return Sparse(at_K.int(), gradient_M[at_K])


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
        state: State = {"step": self.step, "residual": self.residual_M}
        if self._velocity_M is not None:
            state["velocity"] = self._velocity_M
        return state

    def load_state_dict(self, states: Sequence[State]) -> None:
        step = states[0].get("step")
        if type(step) is not int or step < 0:
            raise UnfitStateError("exchange/step is not a number of steps")
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
