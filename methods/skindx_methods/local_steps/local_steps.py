"""Local steps: ranks train apart, code what they moved by, and take an outer step on the mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.comm.exchange import Exchange, State, take_over
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError, check_like, is_finite
from skindx_methods.local_steps.local import HEAD_BYTES, LocalSettings
from skindx_methods.local_steps.local_codes import decode, encode

# M = elements of the weights, P = ranks, S = elements of a rank's part of them, B = bytes of a
# message

TAKEN = "taken"
"""Key of the steps of a round in an exchange's state."""
_TOLD = 8
"""Bytes of a head before the number of an unfit message."""
OUTER = "outer step"
_FAULTS = ("begins otherwise", "marks another number of places", "is not finite")
"""What is unfit about a message."""


class LocalSteps(Exchange):
    """Local SGD with an outer step (DiLoCo, algorithm 1), error feedback and packed messages.

    With the weights a that all ranks began the round with, those w_p that rank p has come to, and
    its residual r_p, a rank codes d_p = a - w_p + r_p. Each rank owns a part of the elements: it
    gets the codes of all others, and to all it sends the code c of their mean m, in which its own
    d_p is exact. A rank keeps what its codes lack, and of its own part P (m - c): so nothing is
    lost, and a round takes 2 (P - 1) messages of 1 / P, however many ranks there are. All ranks
    take the outer step on c, and go on from the same bits. With an overlap they take it some steps
    later, and each goes on from there by what it has moved by since it sent.
    """

    after_update = OUTER

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.taken, self._norm = 0, 0.0
        """Steps taken in this round; the norm of this rank's gradient."""
        self.agreed = 1
        """Number of last steps over which all ranks now hold the same weights; 0: they do not."""
        self._rounds = 0
        """Number of messages sent."""
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
                    f"exchange.kind=local: rank {rank} trains another network or has other "
                    "exchange settings than rank 0; start all ranks with the same settings and "
                    "code."
                )

    def launch(self, group: int) -> None:
        """Gradients stay where they are."""

    def finish(self) -> bool:
        """Leave the gradient to the rank's optimizer; False, on this rank, for one not finite."""
        self._norm = super().norm()
        return math.isfinite(self._norm)

    def norm(self) -> float:
        """Return the norm of this rank's gradient."""
        return self._norm

    def step_done(self) -> None:
        """Count the step; the last one of a round sends the message."""
        self.agreed = 0
        self.agreed = self._count_step()

    step_skipped = step_done

    def _count_step(self) -> int:
        self.forward()
        is_sync_step, self.taken = self.is_sync_step, self.taken + 1
        if not is_sync_step:
            if self._sent and self.taken == (self.settings.overlap + 1) // 2:
                self._answer(self._sent)
            return 0
        if not self._sent:
            self._send()
        return 0 if self.taken < self.settings.overlap else self._outer_step()

    @property
    def is_sync_step(self) -> bool:
        """Whether the step ends a round, or the overlap with the one before."""
        taken, overlap = self.taken + 1, self.settings.overlap
        return taken >= self.settings.steps or (self._sent is not None and taken >= overlap)

    def forward(self) -> None:
        """Move by what this rank did since it sent the message of the last outer step."""
        ahead_M, self._ahead_M = self._ahead_M, None
        if ahead_M is not None:
            self._move_to(ahead_M.add_(self._anchor_M))

    def sync(self) -> int:
        """End the round, and the one before where its message is under way.

        Return over how many steps all ranks hold the same weights then; 0: they did before.
        """
        agreed = self._outer_step() if self._sent else 0
        if self.taken:
            self.forward()
            self._send()
            agreed += self._outer_step()
        return agreed

    @property
    def rounds(self) -> int:
        """Number of rounds that have ended."""
        return self._rounds - (self._sent is not None)

    def break_off(self) -> None:
        """Take back a message that was not taken in: the round that it ended goes on.

        One that came with a loaded state is known to all ranks, and stays.
        """
        sent = self._sent
        if sent is None or sent.known:
            return
        self._sent = None
        if sent.sent_M is not None:
            begun_M = self._weights() if sent.begun_M is None else sent.begun_M
            self.residual_M += sent.sent_M - (self._anchor_M - begun_M)
            if sent.error_S is not None:
                self._local(self.residual_M).sub_(sent.error_S)
        self.taken, self._rounds = self.taken + sent.steps, self._rounds - 1

    def _send(self) -> None:
        """Begin to send what this rank's weights moved by; a new round begins."""
        weights_M = self._weights()
        change_M = self._anchor_M - weights_M
        change_M += self.residual_M
        begun_M = weights_M.clone() if self.settings.overlap else None
        self._sent = sent = _Sent(self.taken, begun_M)
        self.taken, self._rounds = 0, self._rounds + 1
        if self._whole:
            sent.mean_M, sent.works = change_M, [self.fabric.all_reduce(change_M)]
            if self.fabric.world == 1:
                sent.sent_M, self.residual_M = change_M, torch.zeros_like(change_M)
            return
        world, rank = self.fabric.world, self.fabric.rank
        size = self.settings.part_elements(len(change_M), world)
        padded_M = nn.functional.pad(change_M, (0, world * size - len(change_M)))
        parts = list(padded_M.view(world, size))
        head, sent.part_S = self._head(), parts[rank].clone()
        codes = [encode(part_S, self.settings) for part_S in parts]
        rows_PB = torch.stack([torch.cat([head, code]) for code in codes])
        sent.rows_PB = torch.zeros_like(rows_PB)
        sent.works = self.fabric.deal(rows_PB, sent.rows_PB)
        parts = [decode(code, size, self.settings) for code in codes]
        parts[rank] = sent.part_S
        sent.sent_M = torch.cat(parts)[: len(change_M)]
        self.residual_M = change_M.sub_(sent.sent_M)

    @property
    def _whole(self) -> bool:
        return self.settings.whole or self.fabric.world == 1

    def _head(self, fault: int = 0) -> Tensor:
        """Return what every rank's message begins with: length, round, and an unfit message."""
        head = torch.tensor([len(self.gradients.flat), self._rounds, fault], dtype=torch.int32)
        return head.view(torch.uint8).to(self.fabric.device)

    def _local(self, vector_M: Tensor) -> Tensor:
        """Return this rank's part of a vector, a view without the last part's padding."""
        size = self.settings.part_elements(len(vector_M), self.fabric.world)
        return vector_M[self.fabric.rank * size :][:size]

    def _answer(self, sent: "_Sent") -> None:
        """Wait for the codes of this rank's part; begin to send the code of their mean."""
        if sent.part_S is None or sent.rows_PB is None:
            return
        for work in sent.works:
            work.wait()
        world, rank = self.fabric.world, self.fabric.rank
        mean_S = sent.part_S / world
        fault = 0 if is_finite(mean_S) else self._fault(rank, 2)
        for peer, row_B in enumerate(sent.rows_PB):
            if peer != rank and not fault:
                part_S, fault = self._decoded(row_B, len(mean_S), peer)
                mean_S.add_(part_S, alpha=1 / world)
        code = encode(mean_S.nan_to_num() if fault else mean_S, self.settings)
        message_B = torch.cat([self._head(fault), code])
        sent.error_S = mean_S.sub_(decode(code, len(mean_S), self.settings)).mul_(world)
        residual_S = self._local(self.residual_M)
        sent.error_S = sent.error_S[: len(residual_S)]
        residual_S.add_(sent.error_S)
        sent.part_S, sent.rows_PB = None, torch.zeros_like(sent.rows_PB)
        sent.rows_PB[rank] = message_B
        sent.works = self.fabric.share(sent.rows_PB)

    def _arrived(self, sent: "_Sent") -> Tensor:
        """Wait for the messages; return the mean of what the ranks sent. Raises UserError."""
        self._answer(sent)
        for work in sent.works:
            work.wait()
        world, rows_PB = self.fabric.world, sent.rows_PB
        if sent.works and sent.mean_M is not None:
            sent.mean_M.div_(world)
            if not is_finite(sent.mean_M):
                raise UserError(self._not_finite("a rank"))
        elif rows_PB is not None:
            size = self.settings.part_elements(len(self._anchor_M), world)
            pairs = [self._decoded(row_B, size, rank) for rank, row_B in enumerate(rows_PB)]
            if fault := max(fault for _, fault in pairs):
                raise UserError(self._unfit(fault))
            sent.mean_M = torch.cat([part_S for part_S, _ in pairs])[: len(self._anchor_M)]
        sent.works, sent.rows_PB = [], None
        assert sent.mean_M is not None
        return sent.mean_M

    def _decoded(self, row_B: Tensor, elements: int, rank: int) -> tuple[Tensor, int]:
        """Return the elements that a rank sent, and 0 or what is unfit about them."""
        part_S = torch.zeros(elements, device=row_B.device)
        if not row_B[:_TOLD].equal(self._head()[:_TOLD]):
            return part_S, self._fault(rank, 0)
        if told := int(row_B[_TOLD:HEAD_BYTES].clone().view(torch.int32)):
            return part_S, told
        try:
            decoded_S = decode(row_B[HEAD_BYTES:], elements, self.settings)
        except ValueError:
            return part_S, self._fault(rank, 1)
        if not is_finite(decoded_S):
            return part_S, self._fault(rank, 2)
        return decoded_S, 0

    @staticmethod
    def _fault(rank: int, what: int) -> int:
        """Return a rank and what is unfit about its message as a number above 0."""
        return 1 + len(_FAULTS) * rank + what

    def _unfit(self, fault: int) -> str:
        rank, what = divmod(fault - 1, len(_FAULTS))
        if what == 2:
            return self._not_finite(f"rank {rank}")
        return (
            f"exchange.kind=local: the message of rank {rank} {_FAULTS[what]} than that of round "
            f"{self._rounds} should; start all ranks with the same settings and code."
        )

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
        if self.taken:
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
        self.forward()
        state: State = {
            TAKEN: self.taken,
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
        counts = {name: first[name] for name in (TAKEN, "round") if name in first}
        for name, count in ({TAKEN: None} | counts).items():
            if type(count) is not int or count < 0:
                raise UnfitStateError(f"exchange/{name} is not a number of steps")
        alike = {"anchor": self._anchor_M}
        if self._velocity_M is not None:
            alike["velocity"] = self._velocity_M
        weights_M = torch.empty_like(self._anchor_M)
        sent = None
        if "round" in counts:
            sent = _Sent(counts["round"], torch.empty_like(weights_M), known=True)
            sent.mean_M = alike["mean"] = torch.empty_like(weights_M)
        for name, tensor in alike.items():
            check_like(first.get(name), tensor, f"exchange/{name}")
        take_over(self.residual_M, states, "residual", self.fabric)
        take_over(weights_M, states, "weights", self.fabric)
        if sent and sent.begun_M is not None:
            take_over(sent.begun_M, states, "begun", self.fabric)
        for name, tensor in alike.items():
            tensor.copy_(first[name])
        self.taken, self._sent, self._ahead_M = counts[TAKEN], sent, None
        self._move_to(weights_M if self.taken or sent else self._anchor_M)


@dataclass
class _Sent:
    """A message under way, or what has come of it."""

    steps: int
    """Number of steps of its round."""
    begun_M: Tensor | None
    """This rank's weights when it was sent."""
    mean_M: Tensor | None = None
    """Mean of all ranks' changes; their sum until the message is complete."""
    part_S: Tensor | None = None
    """This rank's change of its own part, until it has answered."""
    rows_PB: Tensor | None = None
    """All ranks' messages: the codes of this rank's part, then those of all means."""
    sent_M: Tensor | None = None
    """What this rank's messages carry; none: all."""
    error_S: Tensor | None = None
    """What this rank's residual took over from the mean of its part."""
    works: Sequence[dist.Work] = ()
    known: bool = False
    """Whether all ranks know it, since they loaded it from a checkpoint."""
