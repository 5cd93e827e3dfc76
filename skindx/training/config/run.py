"""Settings of a training run: members, engine, detector, trackers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_kinds import AnyExchange
from skindx.core.secret_hosts import check_sent, host_of
from skindx.core.settings_base import Settings
from skindx.data.loader.settings import LoaderSettings
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.classifier.preprocess import Views
from skindx.models.towers import NAME as TOWER
from skindx.models.towers import TowerOrigin
from skindx.training.config.engine import SETTINGS as SETTINGS  # noqa: PLC0414 (its users)
from skindx.training.config.engine import CheckpointSettings, EngineSettings
from skindx.training.config.ensemble import (
    NAME,
    DetectorSettings,
    EnsembleSettings,
    FusionSettings,
    PackSettings,
    ReusedSettings,
)
from skindx.training.config.optimizers import readers_of
from skindx.training.config.recipe import Recipe, check_frozen_recipe, check_head


class TensorBoardSettings(Settings):
    """Event files in RUN/tensorboard: `tensorboard --logdir RUN/tensorboard`."""

    kind: Literal["tensorboard"] = "tensorboard"
    every_steps: int = Field(10, ge=1, le=10**9)
    """Steps between two points of the step's loss."""


class WandbSettings(Settings):
    """Weights & Biases."""

    kind: Literal["wandb"] = "wandb"
    mode: Literal["offline", "online"] = "offline"
    """offline: into RUN/wandb, for a later `wandb sync`; online: to its server, with your key."""
    project: str = "skindx"
    entity: str | None = None
    """The team or user that the project belongs to; none: the key's own."""


class MlflowSettings(Settings):
    """MLflow."""

    kind: Literal["mlflow"] = "mlflow"
    uri: str | None = None
    """A tracking server (https://…) or database (sqlite:///FILE, with the whole of MLflow).

    none: files in RUN/mlruns; to look at them, start `mlflow ui --backend-store-uri RUN/mlruns`
    with MLFLOW_ALLOW_FILE_STORE=true.
    """
    experiment: str = "skindx"


def _by_name(value: Any) -> Any:
    """Let `tensorboard` stand for its settings as they are."""
    return {"kind": value} if isinstance(value, str) else value


MonitorSettings = Annotated[
    Annotated[TensorBoardSettings | WandbSettings | MlflowSettings, Field(discriminator="kind")],
    BeforeValidator(_by_name),
]


def _host(monitor: TensorBoardSettings | WandbSettings | MlflowSettings) -> str:
    """Return where a tracker sends what it gets; "": it stays on this machine."""
    if isinstance(monitor, WandbSettings):
        return "api.wandb.ai" if monitor.mode == "online" else ""
    return host_of(monitor.uri or "") if isinstance(monitor, MlflowSettings) else ""


def _without_uri(raw: Any) -> Any:
    """Return a tracker's plain values but for its address, which is checked as a URL."""
    return {key: raw[key] for key in raw if key != "uri"} if isinstance(raw, Mapping) else raw


class MemberSettings(ClassifierSettings):
    """One member of the ensemble."""

    model: str = Field(pattern=rf"^(?:[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?|{TOWER})$", max_length=512)
    """A name of timm's list, or a tower: hf-hub:ORG/NAME, or local-dir:FOLDER in the format of timm
    or open_clip. What a tower's name stands for is written into RUN/train.yaml."""
    name: str = Field(pattern=NAME)
    weights: Path | None = None
    """Start from these tensors (safetensors or a plain state dict) instead of random ones."""
    pretrained: bool = False
    """Start from timm's own weights, or the tower's, fetched once; training itself reaches no
    network."""
    trunk: Literal["trained", "frozen"] = "trained"
    """frozen: only the head learns, on features that are computed once for all members of a
    trunk; `views` are then seen in training too."""
    tower: TowerOrigin | None = None
    """Tower that `weights` come from, if any; written with what its name stands for."""
    seed: int = Field(0, ge=0, lt=2**63)
    recipe: Recipe | None = None
    """Recipe of this member; null: that of the run."""
    fold: int | None = Field(None, ge=0, le=19)
    """Train on all of train and val but this fold of the run's `folds`, and validate on it.

    In a file also `each`: one member a fold, named NAME-fold0 and so on.
    """
    views: Views = 1
    """Test-time augmentation: the number of flips and turns of each image."""
    removed_from: ClassVar[str] = "train members[]."

    @model_validator(mode="before")
    @classmethod
    def _no_low_rank(cls, raw: Any) -> Any:
        """Read what older runs saved of each member, whether its trunk was `lora` or not."""
        if not isinstance(raw, dict) or raw.get("trunk") == "lora":
            return raw
        return {key: value for key, value in raw.items() if key != "lora"}

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.pretrained and self.weights:
            raise ValueError(
                "`weights` and `pretrained: true` cannot be set together; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _head_fits_the_trunk(self) -> Self:
        check_head(self.head, self.trunk)
        return self

    def network(self) -> ClassifierSettings:
        """Return what the network is built from, without how it is trained."""
        return ClassifierSettings(
            **{name: getattr(self, name) for name in ClassifierSettings.model_fields}
        )


class TrainSettings(Settings):
    """A training run: `skindx train DATASET --config FILE`."""

    name: str = Field("skindx", max_length=200)
    members: tuple[MemberSettings, ...] = (MemberSettings(name="resnet18", model="resnet18"),)
    """The members that this run trains."""
    reused: tuple[ReusedSettings, ...] = ()
    """Members of other runs; with these, `members` may be left out."""
    folds: int = Field(5, ge=2, le=20)
    """Number of folds of train and val, for members with a `fold`."""
    ensemble: EnsembleSettings = EnsembleSettings()
    pack: PackSettings = Field(PackSettings(), exclude_if=lambda pack: pack == PackSettings())
    recipe: Recipe = Recipe()
    engine: EngineSettings = EngineSettings()
    exchange: AnyExchange = DenseSettings()
    """How ranks agree on their gradients, by its `kind`."""
    detector: DetectorSettings | None = None
    fusion: FusionSettings | None = None
    loader: LoaderSettings = LoaderSettings()
    monitors: tuple[MonitorSettings, ...] = ()
    """Trackers that log each epoch, beside the bar and RUN/members/NAME/history.csv.

    tensorboard, wandb, mlflow: by name, or as `kind: …` with settings. Nothing leaves this machine
    unless wandb's `mode` is online or mlflow has a `uri` elsewhere.
    """
    checkpoint: CheckpointSettings = CheckpointSettings()
    use: UseLimits | None = Field(None, exclude_if=lambda use: use is None)
    """What the bundle may be used for, what it learned from and what it is not for: its index, its
    card and each of its answers say so. A change packs a finished run again, without training."""

    removed_from: ClassVar[str] = "train "

    def check_sent(self, raw: Mapping[str, Any], origin: str) -> None:
        """Raise UserError for a variable that a tracker, which gets every setting, sends away."""
        hosts = [_host(monitor) for monitor in self.monitors]
        plain = {**raw, "monitors": [_without_uri(one) for one in raw.get("monitors") or ()]}
        check_sent(plain, [host for host in hosts if host], origin)

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, raw: Any) -> Any:
        return write_out(raw) if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        check_names(self)
        return self

    @model_validator(mode="after")
    def _exchanges_whole_gradients(self) -> Self:
        if self.engine.zero and not self.exchange.by_engine:
            raise ValueError(
                f"exchange.kind={self.exchange.kind} needs whole gradients, which ZeRO does not "
                f"keep; set engine.zero=0, or keep engine.zero={self.engine.zero} and set "
                "exchange.kind=dense"
            )
        return self

    @model_validator(mode="after")
    def _exchange_fits_the_training(self) -> Self:
        self.exchange.check_engine(self.engine)
        self.exchange.check_training(
            whole_layers=self.engine.compile or self.engine.precision == "fp16",
            preconditioned=any(self.recipe_of(member).preconditioner for member in self.members),
        )
        return self

    @model_validator(mode="after")
    def _preconditions_whole_gradients(self) -> Self:
        for member in self.members:
            if preconditioner := self.recipe_of(member).preconditioner:
                preconditioner.check(member.name, self.engine, member.trunk)
        return self

    @model_validator(mode="after")
    def _splits_layers(self) -> Self:
        for member in self.members:
            self.engine.parallel.check_member(member.name, self.recipe_of(member))
        return self

    @model_validator(mode="after")
    def _starts_its_ranks(self) -> Self:
        self.engine.check_run(self)
        return self

    @model_validator(mode="after")
    def _momentum_once(self) -> Self:
        if not getattr(self.exchange, "momentum", 0):
            return self
        for member in self.members:
            recipe = self.recipe_of(member)
            if "momentum" not in recipe.optimizer_kind.reads or recipe.momentum:
                with_momentum = " or ".join(readers_of("momentum"))
                raise ValueError(
                    f"member {member.name} would apply momentum in both optimizer and exchange; "
                    f"set recipe.momentum=0 with recipe.optimizer={with_momentum}, or "
                    "exchange.momentum=0"
                )
        if self.detector and not self.detector.from_run:
            raise ValueError(
                "exchange.momentum does not work with AdamW, the optimizer of the detector; set "
                "exchange.momentum=0, or train the detector in a separate run"
            )
        return self

    @model_validator(mode="after")
    def _fusion_needs_boxes(self) -> Self:
        if self.fusion and not self.detector:
            raise ValueError("fusion needs a detector; add `detector`, or remove `fusion`")
        if self.fusion and any(member.fold is not None for member in self.members):
            raise ValueError(
                "fusion is fitted on the validation split, but members with `fold` train on "
                "validation images; remove `fusion`, or remove `fold` from all members"
            )
        return self

    @model_validator(mode="after")
    def _recipes_fit_the_trunks(self) -> Self:
        for member in self.members:
            if member.trunk == "frozen":
                check_frozen_recipe(member.name, self.recipe_of(member))
        return self

    @model_validator(mode="after")
    def _resizing_grows(self) -> Self:
        for member in self.members:
            resize, size = self.recipe_of(member).resize, member.preprocess.size
            if resize and resize.start >= size:
                raise ValueError(
                    f"{member.name}: resize.start={resize.start} must be below its "
                    f"preprocess.size={size}"
                )
        return self

    def exchange_fields(self) -> dict[str, Any]:
        """Return what of the exchange decides the weights: nothing of the engine's own."""
        return (
            {} if self.exchange.by_engine else {"exchange": self.exchange.model_dump(mode="json")}
        )

    def recipe_of(self, member: MemberSettings) -> Recipe:
        """Return the member's own recipe, or the run's."""
        return member.recipe or self.recipe

    def starting_from(self, weights: Path) -> Self:
        """Return these settings with `weights` for every member that names none itself."""
        members = tuple(
            member
            if member.weights or member.pretrained
            else member.model_copy(update={"weights": weights})
            for member in self.members
        )
        return self.model_copy(update={"members": members})


def write_out(raw: dict[str, Any]) -> dict[str, Any]:
    """Return plain settings in which `fold: each` has become one member a fold."""
    raw = dict(raw)
    if raw.get("reused"):
        raw.setdefault("members", [])
    folds = raw.get("folds", TrainSettings.model_fields["folds"].default)
    members = raw.get("members")
    if isinstance(members, list) and isinstance(folds, int):
        raw["members"] = [unfolded for member in members for unfolded in _folds_of(member, folds)]
    return raw


def _folds_of(member: Any, folds: int) -> list[Any]:
    if not isinstance(member, dict) or member.get("fold") != "each":
        return [member]
    name = member.get("name", "")
    return [{**member, "name": f"{name}-fold{fold}", "fold": fold} for fold in range(folds)]


def check_names(settings: TrainSettings) -> None:
    """Raise ValueError unless every member has a name of its own, and a fold that there is."""
    names = [member.name for member in settings.members]
    names += [reused.known_as for reused in settings.reused]
    if not names:
        raise ValueError(
            "an ensemble needs at least one member; add a member to `members` or `reused`"
        )
    if len(set(names)) < len(names):
        raise ValueError("two members have the same name; give each member its own name")
    for member in settings.members:
        if member.fold is not None and member.fold >= settings.folds:
            raise ValueError(
                f"member {member.name} has fold={member.fold}, but folds={settings.folds} allows "
                f"only 0 to {settings.folds - 1}; correct fold"
            )
