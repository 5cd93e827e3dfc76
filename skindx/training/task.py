"""One member in training: what changes, and what all else is made from."""

from dataclasses import dataclass, field

from torch import nn

from skindx.models.classifier.classifier import Classifier
from skindx.training.checkpoint.stateful import Buffers
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.feeding.images import TrainingSet, ValidationSet
from skindx.training.feeding.waiting import Waiting
from skindx.training.parallel.mesh import Cluster
from skindx.training.position import Position
from skindx.training.recipes.ema import WeightAverage
from skindx.training.step_guard import Watch


@dataclass(frozen=True)
class MemberTraining:
    """One member in training.

    Stateful, so a checkpoint holds it: `engine` (weights, optimizer), `average`, `position`, and
    the batch-norm `statistics` of both networks, which differ by rank until an epoch ends.
    Everything else is made from the settings alone: order and shares of the pictures, their side,
    crops, changes and mixture, the learning rate and torch's random numbers (dropout) are pure
    functions of (seed, epoch, step), of the picture's number or of the rank, so that a training
    that starts anywhere goes on to the bit.
    """

    member: MemberSettings
    recipe: Recipe
    cluster: Cluster
    engine: Engine
    average: WeightAverage | None
    pictures: TrainingSet
    validation: ValidationSet
    loss: nn.Module
    classes: int
    statistics: Buffers
    watch: Watch
    position: Position = field(default_factory=Position)
    waiting: Waiting = field(default_factory=Waiting)
    """How long this rank waited for pictures in the current epoch."""

    @property
    def name(self) -> str:
        """The member's."""
        return self.member.name

    @property
    def epochs(self) -> int:
        """How many there will be."""
        return self.recipe.epochs

    def judged(self) -> Classifier:
        """Return the network that is validated and kept; every rank calls this.

        It is the average, or the one in training; the next step changes either.
        """
        module = self.average.module if self.average else self.engine.whole()
        assert isinstance(module, Classifier)
        return module
