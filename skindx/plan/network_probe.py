"""`skindx plan network`: the ranks that a launcher starts measure the links between them."""

import os
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import psutil

from skindx.comm.bucketed_exchange import nodes_of
from skindx.comm.fabric import Fabric
from skindx.core import measurement
from skindx.core.cost.cluster import Cluster, Links
from skindx.core.errors import UserError
from skindx.plan.links import measure_links
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.ranks import join, launch
from skindx.training.launching.place import settle_place
from skindx.training.launching.supervise import RANKS, end_with_parent, write_note
from skindx.training.parallel.mesh import Mesh, leave, resolve_accelerator

GRACE_S = 5.0

BUDGET_S = 40.0
"""For all collectives; a slow network takes longer, since its bandwidth must be seen."""


def network(
    engine: EngineSettings,
    out: Path,
    ranks_per_node: int | None = None,
    seconds: float = BUDGET_S,
) -> bool:
    """Measure and write `out`, in about so many `seconds`.

    False on a rank that another launcher started and that does not write.
    Starts the ranks itself, on this machine or on the hosts of the engine's hostfile; a process
    that torchrun or Slurm started (RANK is set) is one of them.
    """
    settle_place()
    if "RANK" in os.environ:
        return rank(engine, out, ranks_per_node, seconds)
    with tempfile.TemporaryDirectory(prefix="skindx-plan-", dir=_shared(engine, out)) as folder:
        settings = Path(folder) / "engine.yaml"
        engine.save(settings)
        launch(
            engine,
            resolve_accelerator(engine.accelerator),
            "skindx.plan.network_probe",
            [str(settings), str(out.resolve()), str(ranks_per_node or 0), str(seconds)],
            notes=Path(folder) / RANKS,
            grace_s=GRACE_S,
        )
    return True


def _shared(engine: EngineSettings, out: Path) -> Path | None:
    """Return a folder that all hosts see: that of the output where there are several."""
    if not engine.hostfile:
        return None
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.resolve().parent


def rank(
    engine: EngineSettings, out: Path, ranks_per_node: int | None, seconds: float = BUDGET_S
) -> bool:
    """Be one of the ranks; the first one writes. Raises UserError on all ranks alike."""
    mesh = join(engine)
    try:
        cluster = cluster_of(mesh, ranks_per_node, seconds)
        if mesh.is_main:
            cluster.write(out)
    finally:
        leave()
    return mesh.is_main


def cluster_of(
    mesh: Mesh, ranks_per_node: int | None = None, budget_s: float = BUDGET_S
) -> Cluster:
    """Return what the ranks of a mesh measured; every rank calls this. Raises UserError."""
    world = mesh.data.size
    nodes, per_node = layout(mesh, ranks_per_node)
    fabric = Fabric(mesh.device, timedelta(seconds=mesh.settings.timeout_s))
    host = measurement.cpu_model()
    memory_bytes = psutil.virtual_memory().total
    if mesh.device.type == "cuda":
        import torch

        host = torch.cuda.get_device_name(mesh.device)
        memory_bytes = torch.cuda.get_device_properties(mesh.device).total_memory
    backend = "nccl" if mesh.device.type == "cuda" else "gloo"
    name = f"{nodes}x{per_node}-{socket.gethostname()}"
    common = {"name": name, "source": "measured", "nodes": nodes, "ranks_per_node": per_node}
    plain = {**common, "backend": backend, "host": host, "memory_gb": round(memory_bytes / 1e9, 1)}
    if world == 1:
        return Cluster.model_validate(plain)
    result = measure_links(fabric, nodes, per_node, budget_s)
    links = [link for link in (result.between, result.inside) if link]
    return Cluster.model_validate(
        {
            **plain,
            "at_once": result.at_once,
            "links": Links(between=result.between, inside=result.inside),
            "collectives": result.collectives,
            "fastest_beta_s_per_byte": min(link.beta_s_per_byte for link in links),
        }
    )


def layout(mesh: Mesh, ranks_per_node: int | None) -> tuple[int, int]:
    """Return nodes and ranks a node, as host names tell. Raises UserError where nodes differ."""
    world = mesh.data.size
    if ranks_per_node:
        if world % ranks_per_node:
            raise UserError(
                f"{world} ranks are no whole nodes of {ranks_per_node}; give another "
                "--ranks-per-node."
            )
        return world // ranks_per_node, ranks_per_node
    groups = nodes_of(mesh.gather(socket.gethostname()), world)
    sizes = {len(ranks) for ranks in groups}
    if len(sizes) > 1 or any(ranks != list(range(ranks[0], ranks[-1] + 1)) for ranks in groups):
        raise UserError(
            f"the nodes have {sorted(sizes)} ranks; start as many on each, with neighbouring ranks "
            "on one node."
        )
    return len(groups), sizes.pop()


def main(arguments: list[str]) -> int:
    """Run one rank: ENGINE OUT RANKS_PER_NODE SECONDS; return the exit code."""
    end_with_parent()
    settings, out = Path(arguments[0]), Path(arguments[1])
    write_note(settings.parent / RANKS, "at work")
    try:
        rank(EngineSettings.load(settings), out, int(arguments[2]) or None, float(arguments[3]))
    except UserError as error:
        write_note(settings.parent / RANKS, "refused")
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_note(settings.parent / RANKS, "finished")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
