"""Networks from data sheets, for clusters that were not measured yet.

Alpha is the latency of one message between two processes of a training framework, of the order
that the makers and the public measurements of collectives show; beta is the nominal rate less a
tenth for headers. A plan made from these says so, and its interval is wide.
"""

import re

from skindx.core.errors import UserError
from skindx.planning.cluster import Cluster, Link, Links

_GBIT = 8 / 1e9 / 0.9
"""Seconds a byte at a nominal Gbit/s, a tenth of it lost to headers and acknowledgements."""

SPREAD = 0.35
"""Standard deviation over the mean that a network from a data sheet is believed to have."""

BETWEEN = {
    "1gbe": Link(alpha_s=1e-4, beta_s_per_byte=_GBIT, spread=SPREAD),
    "10gbe": Link(alpha_s=5e-5, beta_s_per_byte=_GBIT / 10, spread=SPREAD),
    "25gbe": Link(alpha_s=4e-5, beta_s_per_byte=_GBIT / 25, spread=SPREAD),
    "ib100": Link(alpha_s=5e-6, beta_s_per_byte=_GBIT / 100, spread=SPREAD),
}
"""Name -> link between nodes."""

INSIDE = {
    "pcie": Link(alpha_s=1e-5, beta_s_per_byte=1 / 12e9, spread=SPREAD),
    "nvlink": Link(alpha_s=5e-6, beta_s_per_byte=1 / 150e9, spread=SPREAD),
    "memory": Link(alpha_s=3e-5, beta_s_per_byte=1 / 3e9, spread=SPREAD),
}
"""Name -> link between two ranks of a node: PCIe 3 x16, NVLink 3, and gloo over loopback."""

FORM = "NETWORK:NODESxRANKS, with +INSIDE where a node has several ranks: 10gbe:8x4+nvlink"
_PRESET = re.compile(
    r"(?P<network>[a-z0-9]+)(?::(?P<nodes>\d{1,9})(?:x(?P<ranks>\d{1,9}))?)?(?:\+(?P<inside>\w+))?"
)


def preset(words: str) -> Cluster:
    """Return the cluster that some words name. Raises UserError for words that name none."""
    match = _PRESET.fullmatch(words.lower())
    names = (*BETWEEN, *INSIDE)
    if not match or match["network"] not in names or match["inside"] not in (None, *INSIDE):
        raise UserError(
            f"{words[:80]!r} is no file and no preset; give a cluster.yaml, or {FORM}. Networks: "
            f"{', '.join(BETWEEN)}; inside a node: {', '.join(INSIDE)}."
        )
    network = match["network"]
    nodes, ranks = int(match["nodes"] or 1), int(match["ranks"] or 1)
    if network in INSIDE:  # one node alone: nvlink:8
        nodes, ranks, inside = 1, nodes * ranks, INSIDE[network]
    else:
        inside = INSIDE[match["inside"] or "memory"]
    if nodes < 1 or ranks < 1:
        raise UserError(f"{words!r} has no ranks; a cluster needs one node of one rank or more.")
    gpus = match["inside"] in ("nvlink", "pcie") or network in ("nvlink", "pcie")
    made = {
        "name": words.lower(),
        "source": "preset",
        "nodes": nodes,
        "ranks_per_node": ranks,
        "backend": "nccl" if gpus or network == "ib100" else "gloo",
        "links": Links(between=BETWEEN.get(network), inside=inside),
    }
    return Cluster.parse(made, origin=f"preset {words!r}", expand=False)
