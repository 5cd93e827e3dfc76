"""Local steps: the outer step on the ranks' mean change, and the message that carries a change."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skindx.comm.exchange import Exchange, State, take_over
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.local import CHUNK, INDEX_BITS, LocalSettings
from skindx.core.state_checks import UnfitStateError, check_like

# M = elements of the weights, C = chunks, N = elements of a chunk, K = those that are sent


class LocalSteps(Exchange):
    """Local SGD with an outer step (DiLoCo, algorithm 1), error feedback and packed messages.

    With the weights a that all ranks began the round with, those w_p that rank p has come to, and
    its residual r_p, a rank sends c_p of d_p = a - w_p + r_p and keeps r_p = d_p - c_p; all ranks
    take the outer step on the mean of c_p, and go on from the same bits.
    """

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self._taken, self._norm = 0, 0.0

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Begin a round with the weights as they are."""
        super().attach(fabric, gradients, steps_per_epoch)
        self._anchor_M = self._weights().clone()
        self.residual_M = torch.zeros_like(gradients.flat)
        momentum = self.settings.outer_momentum
        self._velocity_M = torch.zeros_like(gradients.flat) if momentum else None

    def launch(self, group: int) -> None:
        """Gradients stay where they are."""

    def finish(self) -> bool:
        """Leave the gradient to the rank's optimizer; all ranks learn whether all are finite."""
        self._norm = super().norm()
        bad = self.gradients.flat.new_tensor([not math.isfinite(self._norm)])
        self.fabric.all_reduce(bad).wait()
        return not bad.item()

    def norm(self) -> float:
        """Return the norm of this rank's gradient."""
        return self._norm

    def step_done(self) -> int:
        """Count the step; the last one of a round is followed by the outer step."""
        self._taken += 1
        return self.meet() if self._taken >= self.settings.steps else 0

    def meet(self) -> int:
        """End the round, where a step of it was taken."""
        taken, self._taken = self._taken, 0
        if taken:
            self._outer_step()
        return taken

    def _outer_step(self) -> None:
        change_M = self._anchor_M - self._weights()
        change_M += self.residual_M
        update_M = self._mean(change_M)
        if self._velocity_M is not None:
            momentum = self.settings.outer_momentum
            self._velocity_M.mul_(momentum).add_(update_M)
            update_M = update_M.add_(self._velocity_M, alpha=momentum)
        self._anchor_M.sub_(update_M, alpha=self.settings.outer_rate)
        self._move_to(self._anchor_M)

    def _mean(self, change_M: Tensor) -> Tensor:
        """Return the mean of what the ranks send of their changes; the rest is the residual."""
        world = self.fabric.world
        if self.settings.whole:
            self.fabric.all_reduce(change_M).wait()
            return change_M.div_(world)
        message = encode(change_M, self.settings)
        mean_M = torch.zeros_like(change_M)
        for rank, other in enumerate(self.fabric.all_gather(message)):
            sent_M = decode(other, len(change_M), self.settings)
            mean_M += sent_M
            if rank == self.fabric.rank:
                self.residual_M = change_M.sub_(sent_M)
        return mean_M.div_(world)

    def _weights(self) -> Tensor:
        """Return the weights, in the place of gradients, which the next step brings again."""
        with torch.no_grad():
            torch._foreach_copy_(self.gradients.views, tuple(self.gradients.parameters))
        return self.gradients.flat

    def _move_to(self, weights_M: Tensor) -> None:
        self.gradients.flat.copy_(weights_M)
        with torch.no_grad():
            torch._foreach_copy_(tuple(self.gradients.parameters), self.gradients.views)

    def state_dict(self) -> State:
        """Return where the round began, this rank's weights in it, residual and momentum."""
        state: State = {
            "taken": self._taken,
            "anchor": self._anchor_M,
            "residual": self.residual_M,
            "weights": self._weights().clone(),
        }
        if self._velocity_M is not None:
            state["velocity"] = self._velocity_M
        return state

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Go on inside the round.

        On another number of ranks each takes the mean of all weights and of all residuals, so that
        the mean change is the same.
        """
        first = states[0]
        taken = first.get("taken")
        if type(taken) is not int or taken < 0:
            raise UnfitStateError("exchange/taken is no number of steps")
        alike = {"anchor": self._anchor_M}
        if self._velocity_M is not None:
            alike["velocity"] = self._velocity_M
        for name, tensor in alike.items():
            check_like(first.get(name), tensor, f"exchange/{name}")
        weights_M = torch.empty_like(self._anchor_M)
        take_over(self.residual_M, states, "residual", self.fabric)
        take_over(weights_M, states, "weights", self.fabric)
        for name, tensor in alike.items():
            tensor.copy_(first[name])
        self._taken = taken
        self._move_to(weights_M if taken else self._anchor_M)


def encode(change_M: Tensor, settings: LocalSettings) -> Tensor:
    """Return the largest elements of each chunk as bytes: places, values, two numbers a chunk.

    Magnitudes are levels from a lowest one upwards, with equal steps; both numbers are those of
    least squares, so that what is sent never adds to what is left.
    """
    rows_CN = nn.functional.pad(change_M, (0, -len(change_M) % CHUNK)).view(-1, CHUNK)
    k, bits, parts = settings.sent, settings.bits, []
    values_CK = rows_CN
    if k < CHUNK:
        at_CK = rows_CN.abs().topk(k, sorted=False).indices.sort().values
        values_CK = rows_CN.gather(1, at_CK)
        if _masked(k):
            mask_CN = torch.zeros_like(rows_CN, dtype=torch.uint8).scatter_(1, at_CK, 1)
            parts.append(pack(mask_CN, 1))
        else:
            parts.append(pack(at_CK, INDEX_BITS))
    if bits == 32:
        return torch.cat([*parts, values_CK.reshape(-1).view(torch.uint8)])
    size_CK, top = values_CK.abs(), 2 ** (bits - 1) - 1
    low_C1, high_C1 = size_CK.amin(1, keepdim=True), size_CK.amax(1, keepdim=True)
    tiny = torch.finfo(torch.float32).tiny
    level_CK = ((size_CK - low_C1) / (high_C1 - low_C1).clamp_min(tiny) * top).round()
    size_C1, level_C1 = size_CK.mean(1, keepdim=True), level_CK.mean(1, keepdim=True)
    apart_CK = level_CK - level_C1
    step_C1 = (apart_CK * (size_CK - size_C1)).sum(1, keepdim=True)
    step_C1 /= apart_CK.square().sum(1, keepdim=True).clamp_min(1e-6)
    scales_C2 = torch.cat([size_C1 - step_C1 * level_C1, step_C1], 1).bfloat16()
    codes_CK = level_CK.to(torch.int32) * 2 + (values_CK < 0)
    return torch.cat([*parts, pack(codes_CK, bits), scales_C2.reshape(-1).view(torch.uint8)])


def decode(message: Tensor, elements: int, settings: LocalSettings) -> Tensor:
    """Return the change that a message carries, with zeros elsewhere."""
    chunks, k, bits = math.ceil(elements / CHUNK), settings.sent, settings.bits
    at_CK, first = None, 0
    if k < CHUNK:
        first = math.ceil(chunks * min(k * INDEX_BITS, CHUNK) / 8)
        if _masked(k):
            mask_CN = unpack(message[:first], 1, chunks * CHUNK).view(chunks, CHUNK)
            at_CK = mask_CN.nonzero()[:, 1].view(chunks, k)
        else:
            at_CK = unpack(message[:first], INDEX_BITS, chunks * k).view(chunks, k)
    last = first + math.ceil(chunks * k * bits / 8)
    if bits == 32:
        values_CK = message[first:last].clone().view(torch.float32).view(chunks, k)
    else:
        codes_CK = unpack(message[first:last], bits, chunks * k).view(chunks, k)
        scales_C2 = message[last:].clone().view(torch.bfloat16).float().view(chunks, 2)
        values_CK = scales_C2[:, :1] + scales_C2[:, 1:] * (codes_CK >> 1)
        values_CK = torch.where(codes_CK & 1 == 1, -values_CK, values_CK)
    if at_CK is None:
        return values_CK.reshape(-1)[:elements]
    rows_CN = torch.zeros(chunks, CHUNK, device=message.device)
    return rows_CN.scatter_(1, at_CK, values_CK).view(-1)[:elements]


def _masked(k: int) -> bool:
    """Tell whether a bit for each element of a chunk is less than the places of those sent."""
    return k * INDEX_BITS > CHUNK


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Return whole numbers below 2^bits as bytes, without gaps."""
    device = numbers.device
    places = torch.arange(bits, device=device, dtype=torch.int32)
    ones = ((numbers.reshape(-1, 1).to(torch.int32) >> places) & 1).to(torch.uint8).view(-1)
    ones = nn.functional.pad(ones, (0, -len(ones) % 8)).view(-1, 8)
    weights = 1 << torch.arange(8, device=device, dtype=torch.uint8)
    return (ones * weights).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Undo `pack` of so many numbers."""
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    ones = ((packed.view(-1, 1) >> places) & 1).view(-1)[: count * bits].view(count, bits)
    weights = 1 << torch.arange(bits, device=packed.device, dtype=torch.int64)
    return (ones * weights).sum(1)
