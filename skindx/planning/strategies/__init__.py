"""Ways of training, one file each, and the one dict of them."""

from skindx.planning.schedule import Message, Schedule
from skindx.planning.strategies.dense import Dense
from skindx.planning.strategies.factored import Factored
from skindx.planning.strategies.fused import Fused, OneBuffer, PerTensor
from skindx.planning.strategies.gtopk import GTopK
from skindx.planning.strategies.hierarchical import Hierarchical
from skindx.planning.strategies.model import Model
from skindx.planning.strategies.multicolor import Multicolor
from skindx.planning.strategies.operators import Operators
from skindx.planning.strategies.owt import Owt
from skindx.planning.strategies.parallel import EXECUTED
from skindx.planning.strategies.powersgd import PowerSGD
from skindx.planning.strategies.strategy import Load, Strategy
from skindx.planning.strategies.tensor import Tensor
from skindx.planning.strategies.tensor3d import Tensor3d
from skindx.planning.strategies.topk import TopK
from skindx.planning.strategies.zero import Zero1, Zero2, Zero3

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
