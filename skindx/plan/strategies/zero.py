"""ZeRO: ranks share out the optimizer (1), the gradients (2) and the weights (3)."""

from typing import Any, ClassVar

from skindx.comm.dense import DenseSettings
from skindx.core.cost.network import UNMEASURED, Network
from skindx.core.cost.pricing import Load, Strategy, after_backward
from skindx.core.cost.step import Message, Schedule


class Zero(Strategy):
    """`engine.zero` (Rajbhandari et al. 2019, arXiv 1910.02054), with DeepSpeed's own reduction.

    Reduce, update a P-th, and gather the weights again: as many bytes as an all-reduce. Stage 3
    gathers them before forward and once more in backward: half as many again.
    """

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Return its collectives; a gather of all weights is one of a P-th from each rank."""
        if network.ranks == 1:
            return Schedule()
        reduce, gather, local = (
            network.price("all_reduce"),
            network.price("all_gather"),
            DenseSettings().local(load),
        )
        size, part = load.size_bytes, load.size_bytes // network.ranks
        # gloo has no reduce-scatter: DeepSpeed sums the whole buffer there.
        whole = reduce(size) if network.cluster.backend == "gloo" else gather(part)
        summed = after_backward(
            load, size, whole, before_s=local.base_s / 2, after_s=local.base_s / 2
        )
        gathered = Message(0, part, gather(part))
        last = self.zero == 3
        return Schedule(
            (summed,),
            gathers=(gathered, gathered) if last else (),
            spreads=() if last else (gathered,),
            update_share=1 / network.ranks,
            spread=max(reduce.spread, gather.spread, UNMEASURED),
            local_spread=local.spread,
            measured=reduce.measured and gather.measured,
        )

    def fragment(self) -> dict[str, Any]:
        """Name the stage."""
        return {"exchange": {"kind": "dense"}, "engine": {"zero": self.zero}}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count what a rank no longer holds, and DeepSpeed's flat copies."""
        rest = 1 - 1 / network.ranks
        optimizer = load.profile.optimizer_bytes
        saved = optimizer * rest
        saved += load.size_bytes * rest if self.zero >= 2 else 0
        saved += load.size_bytes * rest if self.zero == 3 else 0
        return round(2 * load.size_bytes - saved)


class Zero1(Zero):
    """The optimizer's state."""

    name, zero = "zero-1", 1


class Zero2(Zero):
    """And the gradients."""

    name, zero = "zero-2", 2


class Zero3(Zero):
    """And the weights."""

    name: ClassVar[str] = "zero-3"
    zero: ClassVar[int] = 3
