"""K-FAC as a kind of preconditioner: settings, schedules of its steps, and checks; no torch."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from skindx.training.config.method_settings import PreconditionerSettings

if TYPE_CHECKING:
    from skindx.training.config.engine import EngineSettings


class KfacSettings(PreconditionerSettings):
    """K-FAC (Martens and Grosse 2015; on many ranks Pauloski et al. 2020, arXiv 2007.00784).

    Linear layers, convolutions (grouped and depthwise too) and batch norms take a step along the
    natural gradient; other weights keep their plain gradient, and a message names them.
    """

    builds: ClassVar[str] = "skindx_methods.kfac.kfac:build_kfac"

    kind: Literal["kfac"] = "kfac"
    fisher: Literal["sampled", "empirical"] = "sampled"
    """Gradients in the factors are those of labels drawn from the network's own output (the Fisher
    matrix; one more backward pass at each factor step), or those of the loss (the empirical
    one)."""
    damping: float = Field(0.003, gt=0, le=1e6)
    """Gamma, added to each eigenvalue: the larger, the closer to the plain gradient."""
    negligible: float = Field(0.03, ge=0, lt=1)
    """Share of the damping that a curvature counts as at least, in large layers.

    In directions of smaller curvature the natural gradient is shorter, by at most this share, and a
    step's products leave out eigenvectors that have no more. 0: none is left out."""
    damping_epochs: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = ()
    """Epochs that are done when the damping changes by `damping_factor`."""
    damping_factor: float = Field(0.5, gt=0, le=1e6)
    kl_clip: float = Field(0.0003, ge=0, le=1e6)
    """Largest squared length of a step in the metric of the Fisher matrix; 0: no limit.

    It holds at the largest learning rate of the schedule; at smaller ones steps are shorter in
    proportion, so that a schedule still ends in small steps where the clip is always at work."""
    decay: float = Field(0.95, ge=0, lt=1)
    """Share that a factor's running average keeps when a new one comes in.

    At first it is less, 1 - 1/k at the k-th (Martens and Grosse 2015, section 5), so that the
    average is a mean of all so far: the factors of the untrained network would outweigh it long."""
    factors_every: int = Field(10, ge=1, le=10**9)
    """Steps between two additions to the factors."""
    factor_rows: int = Field(2048, ge=0, le=10**9)
    """Images times positions that are enough for a layer's factors, of one pass on one rank.

    Only the first images are taken where there are more, but an eighth of them at least: the mean
    stays right and varies more, and on other numbers of ranks other images are taken. 0: all."""
    inverses_every: int = Field(100, ge=1, le=10**9)
    """Steps between two eigen-decompositions. The first ones follow earlier, at 0, 1, 2, 4, 8 ...
    times `factors_every`: a factor of one batch is soon stale."""
    widest: int = Field(4608, ge=1, le=10**9)
    """A layer with a wider factor keeps its plain gradient; a decomposition costs the cube."""
    gradient_workers: float = Field(1.0, gt=0, le=1)
    """Share of the ranks that hold a layer's eigenvectors (KAISA, arXiv 2107.01739).

    1: all, and nothing is sent in most steps. Less: the others get the finished gradient in each
    step, and save the memory. It is rounded to a number that divides the ranks, at least one.
    """

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if list(self.damping_epochs) != sorted(set(self.damping_epochs)):
            raise ValueError("damping_epochs must have different epochs in ascending order")
        if self.inverses_every % self.factors_every:
            raise ValueError(
                f"inverses_every={self.inverses_every} must be a multiple of "
                f"factors_every={self.factors_every}, because inverses change only with new "
                "factors"
            )
        return self

    def damping_at(self, epoch: int) -> float:
        """Return the damping after this many epochs."""
        fallen: float = self.damping_factor ** sum(epoch >= done for done in self.damping_epochs)
        return self.damping * fallen

    def decay_at(self, step: int) -> float:
        """Return the share that the average keeps in a step, counted from 0."""
        return min(1 - 1 / (step // self.factors_every + 1), self.decay)

    def inverts_at(self, step: int) -> bool:
        """True when eigenvectors are computed again in a step, counted from 0."""
        times, rest = divmod(step, self.factors_every)
        early = step < self.inverses_every and times & (times - 1) == 0
        return not rest and (early or step % self.inverses_every == 0)

    def check(self, member: str, engine: "EngineSettings", trunk: str) -> None:
        """Refuse what hides whole layers or their gradients."""
        what = f"member {member}: preconditioner.kind={self.kind}"
        if engine.zero:
            raise ValueError(
                f"{what} needs whole gradients, which ZeRO does not keep; set engine.zero=0, or "
                "remove recipe.preconditioner"
            )
        if engine.precision == "fp16":
            raise ValueError(
                f"{what} does not work with the scaled gradients of fp16; set engine.precision=bf16"
            )
        for name in ("compile", "activation_checkpointing"):
            if getattr(engine, name):
                raise ValueError(
                    f"{what} needs to observe each layer, which engine.{name} prevents; set "
                    f"engine.{name}=false"
                )
        if engine.schedule_kind.partitioned:
            raise ValueError(
                f"{what} would make members several times larger, which engine.schedule=hop sends "
                "between workers; set engine.schedule=data or members"
            )
        if trunk != "trained":
            raise ValueError(
                f"{what} needs trunk=trained, but the member has trunk={trunk}; remove "
                "recipe.preconditioner"
            )

    def fingerprint_fields(self) -> dict[str, Any]:
        """Return what decides the weights, as before there were the younger settings."""
        parts = self.model_dump(mode="json")
        del parts["gradient_workers"]  # where eigenvectors are held changes no weight
        for key in ("negligible", "factor_rows"):
            if not parts[key]:
                del parts[key]
        return parts
