"""Profiles and clusters for tests of plans: small, and easy to count by hand."""

from typing import Any

from skindx.comm.exchange_kinds import EXCHANGES
from skindx.core.cost.profile import AtBatch, LocalWork, Profile, ProfiledLayer
from skindx_methods.plan.choices import Exchanging
from skindx_methods.plan.cluster import Cluster, Collective, Link, Links
from skindx_methods.plan.profiles import Profiles

KINDS = (
    "dense", "fused", "bf16", "hierarchical", "multicolor", "topk", "gtopk", "powersgd",
)  # fmt: skip


def profile(local_s: float = 0.0, **change: Any) -> Profile:
    """Two layers of 1,000 and 2,000 elements; forward 1 + 2 s, backward 3 + 4 s, update 0.5 s."""
    layers = (
        ProfiledLayer(name="a", forward_s=1, backward_s=3, shapes=((1000,),), parameter_bytes=4000,
              activation_bytes=100),
        ProfiledLayer(name="b", forward_s=2, backward_s=4, shapes=((40, 50),), parameter_bytes=8000,
              activation_bytes=200),
    )  # fmt: skip
    return Profile(
        **{
            "name": "net",
            "size": 64,
            "batch": 8,
            "layers": layers,
            "update_s": 0.5,
            "at": (
                AtBatch(batch=4, compute_s=5, peak_bytes=1_000_000),
                AtBatch(batch=8, compute_s=10, peak_bytes=1_400_000),
            ),
            "optimizer_bytes": 24000,
            "local": {kind: LocalWork(base_s=local_s, density=0.001) for kind in KINDS},
            **change,
        }
    )


def profiles(own: Profile | None = None, **change: Any) -> Profiles:
    return Profiles(networks=(own or profile(),), device="cuda", **change)


def cluster(nodes: int = 4, alpha_s: float = 0.1, beta: float = 1e-4, **change: Any) -> Cluster:
    """One rank a node; an all-reduce of n bytes takes alpha + beta n, one at a time."""
    found = Collective(collective="all_reduce", nodes=nodes, alpha_s=alpha_s, beta_s_per_byte=beta)
    return Cluster(
        **{
            "nodes": nodes,
            "backend": "nccl",
            "collectives": (found,),
            "links": Links(between=Link(alpha_s=0.01, beta_s_per_byte=1e-4)),
            **change,
        }
    )


def exchanging(name: str, **options: Any) -> Exchanging:
    """The price of an exchange by its kind, or by one of the further names of a kind."""
    kinds = EXCHANGES.loaded().items()
    [settings] = (settings for kind, settings in kinds if name in (kind, *settings.also))
    return Exchanging(settings.parse(options), name)
