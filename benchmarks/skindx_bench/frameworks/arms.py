"""The compared frameworks: what runs each, where, and what it leaves of a gradient."""

from dataclasses import dataclass, field
from typing import Any

from skindx_bench.frameworks.traffic import Sending

_TORCH = "skindx_bench.frameworks.torch_rank"


@dataclass(frozen=True)
class Arm:
    """One framework, or one exchange of ours."""

    module: str = _TORCH
    """Its rank. Arms of one module and environment share processes, which memory is enough for."""
    environment: str = ""
    """Of a peer; empty: ours."""
    kind: str = ""
    """Of the rank, where it has several."""
    options: dict[str, Any] = field(default_factory=dict)
    """What its rank is given with each network."""
    lossless: bool = True
    """Its steps are those of one process, but for rounding."""
    sending: Sending = "buckets"
    """How its gradients go to the others, for the model of its iteration."""
    hides: bool = False
    """Gradients are sent while backward goes on."""
    alone: bool = False
    """It has one rank, which takes the batches of all ranks one after the other."""

    @property
    def ours(self) -> bool:
        """One of skindx' exchanges."""
        return self.kind == "skindx"


def _skindx(exchange: dict[str, Any], **more: Any) -> Arm:
    return Arm(kind="skindx", options={"exchange": exchange}, **more)


ARMS: dict[str, Arm] = {
    "plain": Arm(kind="plain", alone=True),
    "ddp": Arm(kind="ddp", hides=True),
    "fsdp2": Arm(kind="fsdp2", sending="shards"),
    "deepspeed": Arm(kind="deepspeed", sending="whole"),
    "skindx dense": _skindx({"kind": "dense"}, sending="whole"),
    "skindx fused": _skindx({"kind": "fused", "tune": False}, hides=True),
    "skindx factored": _skindx({"kind": "factored"}, sending="factors", hides=True),
    "skindx gtopk": _skindx({"kind": "gtopk", "warmup": []}, lossless=False, sending="sparse"),
    "fabric": Arm("skindx_bench.frameworks.fabric_rank", "fabric", hides=True),
    "jax": Arm("skindx_bench.frameworks.jax_rank", "jax", sending="tensors"),
    "tensorflow": Arm("skindx_bench.frameworks.tensorflow_rank", "tensorflow", sending="tensors"),
}
"""Name -> arm. Of a peer the rank's module is run by the Python of its environment."""
