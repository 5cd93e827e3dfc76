"""All ranks check each step together before it is taken."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.training.parallel.mesh import Mesh


class StepGuard:
    """Is the loss finite, a checkpoint due, a stop asked for? One answer on all ranks.

    One small reduction a step: a rank that skipped or stopped alone would leave others waiting.
    """

    def __init__(
        self,
        mesh: Mesh,
        bad_steps: int,
        asked: Callable[[], bool] = lambda: False,
        due: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check for a stop that any rank was `asked` for, and a save that is `due` on the main one.

        `bad_steps` without a finite loss may follow one another.
        """
        self._mesh, self.bad_steps = mesh, bad_steps
        self.asked, self.due = asked, due
        self.stop = self.save = False

    def check(self, loss: Tensor) -> float | None:
        """Return this rank's loss, None when some rank's is not finite; take in what was asked for.

        Only this call of a step waits for a GPU: what follows is queued while the GPU works.
        """
        own = loss.detach().float()
        due = self._mesh.is_main and self.due()
        flags = torch.stack(
            [(~own.isfinite()).float(), *(own.new_full((), flag) for flag in (self.asked(), due))]
        )
        if self._mesh.data.size > 1:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        some_bad, stop, save, value = torch.cat([flags, own.view(1)]).tolist()
        self.stop, self.save = bool(stop), bool(save)
        return None if some_bad else value
