"""Local steps: the outer step on the ranks' mean change, and the message that carries a change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.comm.exchange import Exchange, State, take_over
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.local import CHUNK, HEAD_BYTES, INDEX_BITS, LocalSettings
from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError, check_like, is_finite

# M = elements of the weights or bytes of a message, P = ranks, C = chunks, N = elements of a
# chunk, K = those that are sent


class LocalSteps(Exchange):
    """Local SGD with an outer step (DiLoCo, algorithm 1), error feedback and packed messages.

    With the weights a that all ranks began the round with, those w_p that rank p has come to, and
    its residual r_p, a rank sends c_p of d_p = a - w_p + r_p and keeps r_p = d_p - c_p; all ranks
    take the outer step on the mean of c_p, and go on from the same bits. With an overlap they take
    it some steps later, and each goes on from there by what it has moved by since it sent.
    """

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self._taken, self._norm = 0, 0.0
        self._rounds = 0
        """Messages that were sent."""
        self._sent: _Sent | None = None
        self._ahead_M: Tensor | None = None
        """What this rank's weights are to move by before they go on."""

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Begin a round with the weights as they are. Raises UserError on all ranks."""
        super().attach(fabric, gradients, steps_per_epoch)
        self._check_alike()
        self._anchor_M = self._weights().clone()
        self.residual_M = torch.zeros_like(gradients.flat)
        momentum = self.settings.outer_momentum
        self._velocity_M = torch.zeros_like(gradients.flat) if momentum else None

    def _check_alike(self) -> None:
        if self.fabric.world == 1:
            return
        shapes = [tuple(view.shape) for view in self.gradients.views]
        words = f"{self.settings!r} {self.gradients.names} {shapes}"
        digest = torch.frombuffer(bytearray(sha256(words.encode()).digest()), dtype=torch.uint8)
        first, *others = self.fabric.all_gather(digest.to(self.fabric.device))
        for rank, other in enumerate(others, start=1):
            if not other.equal(first):
                raise UserError(
                    f"exchange.kind=local: rank {rank} trains another network or exchanges by "
                    "other settings than rank 0; start all ranks with the same settings and code."
                )

    def launch(self, group: int) -> None:
        """Gradients stay where they are."""

    def finish(self) -> bool:
        """Leave the gradient to the rank's optimizer; what is not finite it skips alone."""
        self._norm = super().norm()
        return math.isfinite(self._norm)

    def norm(self) -> float:
        """Return the norm of this rank's gradient."""
        return self._norm

    def step_done(self) -> int:
        """Count the step, taken or skipped; the last one of a round sends the message."""
        self.go_on()
        meets, self._taken = self.meets, self._taken + 1
        if not meets:
            return 0
        if not self._sent:
            self._send()
        return 0 if self._taken < self.settings.overlap else self._outer_step()

    @property
    def meets(self) -> bool:
        """The step ends a round, or the overlap with the one before."""
        taken, overlap = self._taken + 1, self.settings.overlap
        return taken >= self.settings.steps or (self._sent is not None and taken >= overlap)

    def go_on(self) -> None:
        """Move by what this rank did since it sent the message of the last outer step."""
        ahead_M, self._ahead_M = self._ahead_M, None
        if ahead_M is not None:
            self._move_to(ahead_M.add_(self._anchor_M))

    def meet(self) -> int:
        """End the round, and the one before where its message is under way."""
        agreed = self._outer_step() if self._sent else 0
        if self._taken:
            self.go_on()
            self._send()
            agreed += self._outer_step()
        return agreed

    @property
    def met(self) -> int:
        """How many rounds have ended."""
        return self._rounds - (self._sent is not None)

    def break_off(self) -> None:
        """Take back a message that was not taken in: the round that it ended goes on.

        One that came with a loaded state is known to all ranks, and stays.
        """
        sent = self._sent
        if sent is None or not (self.settings.whole or sent.sent_M is not None):
            return
        self._sent = None
        if sent.sent_M is not None:
            begun_M = self._weights() if sent.begun_M is None else sent.begun_M
            self.residual_M += sent.sent_M - (self._anchor_M - begun_M)
        self._taken, self._rounds = self._taken + sent.steps, self._rounds - 1

    def _send(self) -> None:
        """Begin to send what this rank's weights moved by; a new round begins."""
        weights_M = self._weights()
        change_M = self._anchor_M - weights_M
        change_M += self.residual_M
        begun_M = weights_M.clone() if self.settings.overlap else None
        self._sent = sent = _Sent(self._taken, begun_M)
        self._taken, self._rounds = 0, self._rounds + 1
        if self.settings.whole:
            sent.mean_M, sent.works = change_M, [self.fabric.all_reduce(change_M)]
            return
        message = torch.cat([self._head(), encode(change_M, self.settings)])
        sent.rows_PM = message.new_empty(self.fabric.world, len(message))
        sent.rows_PM[self.fabric.rank] = message
        sent.works = self.fabric.share(sent.rows_PM)
        sent.sent_M = decode(message[HEAD_BYTES:], len(change_M), self.settings)
        self.residual_M = change_M.sub_(sent.sent_M)

    def _head(self) -> Tensor:
        """Return what every rank's message begins with: its length and its round."""
        head = torch.tensor([len(self.gradients.flat), self._rounds], dtype=torch.int32)
        return head.view(torch.uint8).to(self.fabric.device)

    def _arrived(self, sent: "_Sent") -> Tensor:
        """Wait for the message; return the mean of what the ranks sent. Raises UserError."""
        for work in sent.works:
            work.wait()
        world, rows_PM = self.fabric.world, sent.rows_PM
        if sent.works and sent.mean_M is not None:
            sent.mean_M.div_(world)
            if not is_finite(sent.mean_M):
                raise UserError(self._not_finite("a rank"))
        elif rows_PM is not None:
            sent.mean_M, head = torch.zeros_like(self._anchor_M), self._head()
            for rank, row in enumerate(rows_PM):
                sent.mean_M += self._decoded(row, head, rank)
            sent.mean_M.div_(world)
        sent.works, sent.rows_PM = [], None
        assert sent.mean_M is not None
        return sent.mean_M

    def _decoded(self, row: Tensor, head: Tensor, rank: int) -> Tensor:
        """Return the change that a rank has sent, in which all is finite. Raises UserError."""
        try:
            if not row[:HEAD_BYTES].equal(head):
                raise ValueError("begins otherwise")
            change_M = decode(row[HEAD_BYTES:], len(self._anchor_M), self.settings)
        except ValueError as error:
            raise UserError(
                f"exchange.kind=local: the message of rank {rank} {error} than that of round "
                f"{self._rounds} should; start all ranks with the same settings and code."
            ) from None
        if not is_finite(change_M):
            raise UserError(self._not_finite(f"rank {rank}"))
        return change_M

    def _not_finite(self, who: str) -> str:
        return (
            f"exchange.kind=local: the training diverged, what the weights of {who} moved by in "
            f"round {self._rounds} is not finite; lower learning_rate, or lengthen warmup_epochs, "
            "and train into another --out."
        )

    def _outer_step(self) -> int:
        """Take the outer step when the message is there; return the steps of its round."""
        assert self._sent
        sent = self._sent
        update_M, self._sent = self._arrived(sent), None
        if self._taken:
            assert sent.begun_M is not None
            self._ahead_M = sent.begun_M.neg_().add_(self._weights())
        if self._velocity_M is not None:
            momentum = self.settings.outer_momentum
            self._velocity_M.mul_(momentum).add_(update_M)
            update_M = update_M.add_(self._velocity_M, alpha=momentum)
        self._anchor_M.sub_(update_M, alpha=self.settings.outer_rate)
        self._move_to(self._anchor_M)
        return sent.steps

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
        """Return where the round began, this rank's weights in it, residual and momentum.

        A message under way is waited for, and taken in when its step comes.
        """
        self.go_on()
        state: State = {
            "taken": self._taken,
            "anchor": self._anchor_M,
            "residual": self.residual_M,
            "weights": self._weights().clone(),
        }
        if self._velocity_M is not None:
            state["velocity"] = self._velocity_M
        if self._sent:
            assert self._sent.begun_M is not None
            state |= {"round": self._sent.steps, "begun": self._sent.begun_M}
            state["mean"] = self._arrived(self._sent)
        return state

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Go on inside the round.

        On another number of ranks each takes the mean of all weights and of all residuals, so that
        the mean change is the same.
        """
        first = states[0]
        counts = {name: first[name] for name in ("taken", "round") if name in first}
        for name, count in ({"taken": None} | counts).items():
            if type(count) is not int or count < 0:
                raise UnfitStateError(f"exchange/{name} is no number of steps")
        alike = {"anchor": self._anchor_M}
        if self._velocity_M is not None:
            alike["velocity"] = self._velocity_M
        weights_M = torch.empty_like(self._anchor_M)
        sent = None
        if "round" in counts:
            sent = _Sent(counts["round"], torch.empty_like(weights_M))
            sent.mean_M = alike["mean"] = torch.empty_like(weights_M)
        for name, tensor in alike.items():
            check_like(first.get(name), tensor, f"exchange/{name}")
        take_over(self.residual_M, states, "residual", self.fabric)
        take_over(weights_M, states, "weights", self.fabric)
        if sent and sent.begun_M is not None:
            take_over(sent.begun_M, states, "begun", self.fabric)
        for name, tensor in alike.items():
            tensor.copy_(first[name])
        self._taken, self._sent, self._ahead_M = counts["taken"], sent, None
        self._move_to(weights_M if self._taken or sent else self._anchor_M)


@dataclass
class _Sent:
    """A message under way, or what has come of it."""

    steps: int
    """Of its round."""
    begun_M: Tensor | None
    """This rank's weights when it was sent."""
    mean_M: Tensor | None = None
    """Of all ranks' changes; their sum while it is under way."""
    rows_PM: Tensor | None = None
    """All ranks' messages."""
    sent_M: Tensor | None = None
    """What this rank's message carries; none: all."""
    works: Sequence[dist.Work] = ()


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
    """Return the change that a message carries, with zeros elsewhere. Raises ValueError."""
    chunks, k, bits = math.ceil(elements / CHUNK), settings.sent, settings.bits
    at_CK, first = None, 0
    if k < CHUNK:
        first = math.ceil(chunks * min(k * INDEX_BITS, CHUNK) / 8)
        if _masked(k):
            mask_CN = unpack(message[:first], 1, chunks * CHUNK).view(chunks, CHUNK)
            if not (mask_CN.sum(1) == k).all():
                raise ValueError("marks another number of places")
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
