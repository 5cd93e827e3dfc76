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
                "engine.elastic needs the whole state on each rank, but "
                f"engine.zero={engine.zero} splits it; set engine.zero=0, or remove engine.elastic"
            )
        if engine.parallel.splits:
            raise ValueError(
                "engine.elastic needs the whole network on each rank, but "
                f"engine.parallel.kind={engine.parallel.kind} splits it; set "
                "engine.parallel.kind=data, or remove engine.elastic"
            )
        if not engine.schedule_kind.together:
            raise ValueError(
                "engine.elastic works only with engine.schedule=data, and "
                f"engine.schedule={engine.schedule} already survives lost workers; remove "
                "engine.elastic"
            )
        if self.silent_s > engine.timeout_s:
            raise ValueError(
                f"elastic.silent_s={self.silent_s:g} must not be more than "
                f"engine.timeout_s={engine.timeout_s:g}; lower elastic.silent_s, or raise "
                "engine.timeout_s"
            )
        if isinstance(engine.ranks, int) and not engine.hostfile and self.min_ranks > engine.ranks:
            raise ValueError(
                f"elastic.min_ranks={self.min_ranks} is more than engine.ranks={engine.ranks}; "
                f"set elastic.min_ranks to at most {engine.ranks}"
            )

    def check_run(self, settings: Any) -> None:
        """Raise ValueError for an exchange or a member that needs all ranks."""
        if not settings.exchange.shrinks:
            kinds = ", ".join(name for name in EXCHANGES if EXCHANGES.load(name).shrinks)
            raise ValueError(
                f"engine.elastic does not work with exchange.kind={settings.exchange.kind}; set "
                f"exchange.kind to one of {kinds}, or remove engine.elastic"
            )
        for member in settings.members:
            if settings.recipe_of(member).preconditioner:
                raise ValueError(
                    f"member {member.name}: engine.elastic does not work with "
                    "recipe.preconditioner; remove one of these two settings"
                )
