"""Schedules of an ensemble in which each rank trains a member alone; no torch.

`members`: a rank trains a whole member. `hop`: a member visits one partition of the training images
after the other, which stay where they are.
"""

from typing import TYPE_CHECKING

from skindx.training.config.method_settings import Schedule

if TYPE_CHECKING:
    from skindx.training.config.engine import EngineSettings
    from skindx.training.config.run import TrainSettings


class Members(Schedule):
    """A rank trains a whole member, and reads all images."""

    together = False
    run_method = "skindx.training.methods.hopping.hop_worker:LeasedRun"

    def check_engine(self, engine: "EngineSettings") -> None:
        """Refuse weights that are shared with other ranks."""
        if engine.zero:
            raise ValueError(
                f"schedule={engine.schedule} trains each member on one rank, which has no "
                "other rank to share weights with; set zero=0"
            )

    def check_run(self, settings: "TrainSettings") -> None:
        """Refuse an exchange of gradients, and members that are trained together."""
        schedule = settings.engine.schedule
        if not settings.exchange.by_engine:
            raise ValueError(
                f"engine.schedule={schedule} trains each member on one rank at a time, which "
                f"exchanges no gradients; leave out exchange.kind={settings.exchange.kind}"
            )
        if frozen := [member.name for member in settings.members if member.trunk == "frozen"]:
            raise ValueError(
                f"heads on a frozen trunk ({', '.join(frozen)}) are trained together, not by "
                f"engine.schedule={schedule}; train them in a run of their own"
            )


class Hop(Members):
    """Members move between pinned partitions with all their state."""

    partitioned = True

    def check_run(self, settings: "TrainSettings") -> None:
        """Refuse a detector too, which needs all images."""
        super().check_run(settings)
        if settings.detector and not settings.detector.from_run:
            raise ValueError(
                "engine.schedule=hop moves members between partitions, and a detector needs all "
                "images; train it in a run of its own and take it by detector.from"
            )
