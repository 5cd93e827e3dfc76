"""Residuals when a training resumes."""

from collections.abc import Sequence

from torch import Tensor

from skindx.comm.exchange import State
from skindx.comm.fabric import Fabric
from skindx.core.state_checks import check_like


def take_over(residual_M: Tensor, states: Sequence[State], name: str, fabric: Fabric) -> None:
    """Fill a rank's residual from all ranks' states, in rank order. Raises UnfitStateError.

    On the same number of ranks it is the rank's own. On another, each takes the mean of all: a
    step applies the mean of what ranks send, so this keeps the update that is still to come.
    """
    if len(states) == fabric.world:
        state = states[fabric.rank]
        check_like(state.get(name), residual_M, f"exchange/{name}")
        residual_M.copy_(state[name])
        return
    residual_M.zero_()
    for state in states:
        check_like(state.get(name), residual_M, f"exchange/{name}")
        residual_M.add_(state[name].to(residual_M.device), alpha=1 / len(states))
