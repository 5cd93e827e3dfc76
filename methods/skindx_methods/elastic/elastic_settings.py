"""Settings of `engine.elastic`, and what goes with them; no torch is imported here."""

from typing import Any, ClassVar

from pydantic import Field

from skindx.comm.exchange_kinds import EXCHANGES
from skindx.training.config.method_settings import RankGroupSettings

ELASTIC = "SKINDX_ELASTIC"
"""Variable of ranks whose launcher hosts a store and starts dead ranks again."""


class ElasticSettings(RankGroupSettings):
    """Ranks that are lost are left behind, and ranks that come back are taken in, without a stop.

    The global batch stays: each of fewer ranks takes a larger share of it.
    """

    run_method: ClassVar[str] = "skindx_methods.elastic.elastic_launch:ElasticRun"

    min_ranks: int = Field(1, ge=1, le=4096)
    """Fewest ranks that go on; fewer stop at a checkpoint."""
    silent_s: float = Field(4.0, ge=1, le=3600)
    """Seconds without a heartbeat after which a rank is left behind; one that ended is at once."""

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for what cannot go on with other ranks than it began with."""
        if engine.zero:
            raise ValueError(
                f"elastic needs the whole state on each rank, and zero={engine.zero} shares it "
                "out; set zero=0, or leave elastic out"
            )
        if engine.parallel.splits:
            raise ValueError(
                "elastic needs the whole network on each rank, and parallel.kind="
                f"{engine.parallel.kind} splits it; set parallel.kind=data, or leave elastic out"
            )
        if not engine.schedule_kind.together:
            raise ValueError(
                f"elastic is for schedule=data: the workers of schedule={engine.schedule} train "
                "apart, and others take over what a lost one held; leave elastic out"
            )
        if self.silent_s > engine.timeout_s:
            raise ValueError(
                f"elastic.silent_s={self.silent_s:g} is more than timeout_s="
                f"{engine.timeout_s:g}, after which a collective fails; lower the first, or raise "
                "the second"
            )
        if isinstance(engine.ranks, int) and not engine.hostfile and self.min_ranks > engine.ranks:
            raise ValueError(
                f"elastic.min_ranks={self.min_ranks} is more than ranks={engine.ranks}; set it to "
                f"at most {engine.ranks}"
            )

    def check_run(self, settings: Any) -> None:
        """Raise ValueError for an exchange or a member that needs all ranks."""
        if not settings.exchange.shrinks:
            kinds = ", ".join(name for name in EXCHANGES if EXCHANGES.load(name).shrinks)
            raise ValueError(
                f"engine.elastic needs an exchange that goes on among fewer ranks ({kinds}), and "
                f"exchange.kind={settings.exchange.kind} does not; take one of these, or leave "
                "elastic out"
            )
        for member in settings.members:
            if settings.recipe_of(member).preconditioner:
                raise ValueError(
                    f"member {member.name}: engine.elastic goes on among fewer ranks, and the "
                    "factors of recipe.preconditioner are shared out over all; leave one of them "
                    "out"
                )
