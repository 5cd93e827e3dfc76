"""Ways of training, one file each, and the one dict of them."""

from skindx.core.cost.step import Message, Schedule
from skindx.plan.strategies.dense import Dense
from skindx.plan.strategies.factored import Factored
from skindx.plan.strategies.fused import Fused, OneBuffer, PerTensor
from skindx.plan.strategies.gtopk import GTopK
from skindx.plan.strategies.hierarchical import Hierarchical
from skindx.plan.strategies.model import Model
from skindx.plan.strategies.multicolor import Multicolor
from skindx.plan.strategies.operators import Operators
from skindx.plan.strategies.owt import Owt
from skindx.plan.strategies.parallel import EXECUTED
from skindx.plan.strategies.powersgd import PowerSGD
from skindx.plan.strategies.strategy import Load, Strategy
from skindx.plan.strategies.tensor import Tensor
from skindx.plan.strategies.tensor3d import Tensor3d
from skindx.plan.strategies.topk import TopK
from skindx.plan.strategies.zero import Zero1, Zero2, Zero3

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        Dense,
        Fused,
        PerTensor,
        OneBuffer,
        Factored,
        Hierarchical,
        Multicolor,
        TopK,
        GTopK,
        PowerSGD,
        Zero1,
        Zero2,
        Zero3,
        Owt,
        Model,
        Tensor,
        Tensor3d,
        Operators,
    )
}
"""Name, as `--strategy` takes it -> strategy."""

__all__ = ["EXECUTED", "STRATEGIES", "Load", "Message", "Schedule", "Strategy"]
