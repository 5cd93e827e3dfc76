"""Settings of the engine: devices, ranks, precision, ZeRO, DeepSpeed's JSON, checkpoints."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from skindx.core.errors import UserError
from skindx.core.kinds import METHODS, Family
from skindx.core.settings_base import Settings
from skindx.training.config.method_settings import (
    MemberSchedule,
    RankGroupSettings,
    name_in,
    settings_of,
)
from skindx.training.config.parallel_form import PARALLEL_FORMS, DataSettings, ParallelSettings

SCHEDULES = Family(
    "schedule of members",
    "skindx.member_schedules",
    {"data": "skindx.training.config.method_settings:MemberSchedule"},
    elsewhere={"members": METHODS, "hop": METHODS},
)

RANK_GROUPS = Family("engine setting", "skindx.rank_groups", {}, elsewhere={"elastic": METHODS})
"""How ranks come together in place of one group that ends with the first that is lost."""

if TYPE_CHECKING:
    ScheduleName = str
    AnyRankGroup = RankGroupSettings | None
    AnyParallel = ParallelSettings
else:
    ScheduleName = name_in(SCHEDULES)
    AnyRankGroup = settings_of(RANK_GROUPS, "elastic")
    AnyParallel = PARALLEL_FORMS.union()

Accelerator = Literal["auto", "cpu", "cuda"]

SETTINGS = "train.yaml"
"""The settings of a run, in its folder."""

_MOST_PARTITIONS = 4096


class EngineSettings(Settings):
    """Devices, ranks, precision and communication of a training."""

    accelerator: Accelerator = "auto"
    ranks: Annotated[int, Field(le=4096)] | Literal["auto"] = "auto"
    """Processes on this machine; auto: one a GPU, and on a CPU one, or by another schedule than
    data one a core."""
    hostfile: Path | None = None
    """DeepSpeed hostfile (`host slots=N` lines): start ranks on all its hosts instead."""
    launcher: Literal["pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"] = "pdsh"
    """Program with which DeepSpeed starts the hosts of a hostfile; pdsh works by ssh."""
    port: int = Field(29500, ge=1024, le=65535)
    """Port at which the first host of a hostfile waits for the others."""
    interface: str | None = None
    """Network interface between the nodes (eth0, ib0); none: the one that leads to the first."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16, fp16: weights stay fp32, convolutions and products are computed in half the bits."""
    zero: Literal[0, 1, 2, 3] = 0
    """DeepSpeed's ZeRO stage: ranks share out optimizer (1), gradients (2) and weights (3)."""
    deepspeed: Path | None = None
    """JSON of further DeepSpeed settings."""
    gradient_clip: float = Field(1.0, ge=0, le=1e9)
    """Largest gradient norm; 0: no clipping."""
    sync_batch_norm: bool = False
    """Normalise by the statistics of all ranks' images, as one process would."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    channels_last: bool = False
    """Keep weights channels last too, as the images are."""
    compile: bool = False
    """Train through torch.compile; evaluation stays eager."""
    timeout_s: float = Field(600, gt=0, le=1e6)
    """Seconds after which a waiting collective means that a rank is gone, and the job ends."""
    elastic: AnyRankGroup = None
    """Go on when ranks are lost, with schedule=data and parallel.kind=data; none: the job ends."""
    schedule: ScheduleName = "data"
    """How ranks share out the training of an ensemble.

    data: all ranks train one member after the other, each rank a part of every batch. Of
    skindx-methods: members, where a rank trains a whole member and reads all images, and hop, where
    a member visits partitions of the training split that stay where they are.
    """
    parallel: AnyParallel = DataSettings()
    """What the ranks of schedule=data hold of the network, by its `kind`."""
    partitions: int | Literal["auto"] = "auto"
    """Parts of the training split for schedule=hop; auto: one a rank of the run's first start."""
    leases: str | None = Field(None, pattern=r"^[a-z0-9+]+://")
    """PostgreSQL URL of the database from which ranks take their work; none: a file in the run."""
    lease_s: float = Field(60, ge=1, le=1e6)
    """A rank that does not report for this long counts as dead; others take over its work."""

    @property
    def schedule_kind(self) -> MemberSchedule:
        """The schedule that `schedule` names."""
        kind: type[MemberSchedule] = SCHEDULES.load(self.schedule)
        return kind()

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.channels_last and self.zero:
            raise ValueError(
                "channels_last does not work with ZeRO; set engine.zero=0, or "
                "engine.channels_last=false"
            )
        if self.compile and self.zero == 3:
            raise ValueError(
                "compile does not work with zero=3; set engine.compile=false, or engine.zero=2"
            )
        self.schedule_kind.check_engine(self)
        self.parallel.check_engine(self)
        if self.partitions != "auto" and not 1 <= self.partitions <= _MOST_PARTITIONS:
            raise ValueError(
                f"partitions={self.partitions} must be 1 to {_MOST_PARTITIONS}, or auto"
            )
        if self.elastic:
            self.elastic.check_engine(self)
        if self.leases and re.search(r"://[^/@]*:[^/@]*@|[?&]password=", self.leases):
            raise ValueError(
                "the URL in `leases` must not contain a password, because it is stored in the "
                "run; put the password into PGPASSWORD or ~/.pgpass"
            )
        if self.compile and self.activation_checkpointing:
            raise ValueError(
                "activation_checkpointing has no use with compile, which already recomputes "
                "activations; set engine.activation_checkpointing=false"
            )
        return self

    @property
    def run_method(self) -> str:
        """The name of the `RunMethod` that starts and ends ranks; empty: there is none."""
        return self.schedule_kind.run_method or (self.elastic.run_method if self.elastic else "")

    def check_run(self, settings: Any) -> None:
        """Raise ValueError for TrainSettings that do not go with how ranks start and end."""
        self.schedule_kind.check_run(settings)
        if self.elastic:
            self.elastic.check_run(settings)

    @property
    def lockstep(self) -> str:
        """The setting for which ranks need each other in each step; empty: there is none."""
        if self.sync_batch_norm:
            return "engine.sync_batch_norm"
        return "engine.precision=fp16" if self.precision == "fp16" else ""


_OURS = {
    "train_batch_size": "recipe.batch",
    "train_micro_batch_size_per_gpu": "recipe.batch",
    "gradient_accumulation_steps": "the recipe",
    "managed_gradient_accumulation": "the recipe",
    "gradient_clipping": "engine.gradient_clip",
    "fp16": "engine.precision",
    "bf16": "engine.precision",
    "amp": "engine.precision",
    "torch_autocast": "engine.precision",
    "optimizer": "the recipe",
    "scheduler": "the recipe",
    "compile": "engine.compile",
    "tensor_parallel": "engine.parallel",
    "sequence_parallel_size": "engine.parallel",
    "zero_optimization.stage": "engine.zero",
    "zero_optimization.offload_optimizer": "the recipe, whose optimizer runs on the device",
}
"""Key of the JSON -> where its value comes from instead."""


def read_extra(file: Path) -> dict[str, Any]:
    """Read a user's DeepSpeed JSON. Raises UserError for no JSON object, and for keys of ours."""
    try:
        extra = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"the file {file} does not exist; correct the setting engine.deepspeed."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"engine.deepspeed {file} is not valid JSON ({error}); correct the file."
        ) from None
    if not isinstance(extra, dict):
        raise UserError(
            f"engine.deepspeed {file} must contain a JSON object, {{...}}; correct the file."
        )
    zero = extra.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise UserError(
            f"engine.deepspeed {file} must have an object, {{...}}, for 'zero_optimization'; "
            "correct the file."
        )
    given = [*extra, *(f"zero_optimization.{key}" for key in zero)]
    for key in given:
        if key in _OURS:
            raise UserError(
                f"engine.deepspeed {file} has the key {key!r}, which {_OURS[key]} sets; remove "
                "this key from the file."
            )
    return extra


def read_extra_of(settings: EngineSettings) -> dict[str, Any]:
    """Return what `read_extra` returns for the JSON of these settings; nothing where none is."""
    return read_extra(settings.deepspeed) if settings.deepspeed else {}


def fingerprint_fields(settings: EngineSettings) -> dict[str, Any]:
    """Return the part of the JSON that decides the weights: all of it, where there is one."""
    return {"deepspeed": read_extra_of(settings)} if settings.deepspeed else {}


def deepspeed_config(settings: EngineSettings, batch: int, world: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a global batch of `batch` images."""
    extra = read_extra_of(settings)
    # Batches are cut unevenly where they must be: DeepSpeed only checks these products.
    micro = max(1, batch // world)
    config: dict[str, Any] = {
        "steps_per_print": 2**31,
        # SGD and LARS are not on DeepSpeed's list of optimizers that were tried with ZeRO.
        "zero_allow_untested_optimizer": True,
        # Its clock stops a GPU before and after each step; the history has the speed.
        "timers": {"throughput": {"enabled": False}},
        **extra,
        "train_batch_size": micro * world,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": 1,  # the engine says itself where a step ends
        "gradient_clipping": settings.gradient_clip,
        "zero_optimization": {**extra.get("zero_optimization", {}), "stage": settings.zero},
    }
    if settings.precision != "fp32":
        # `bf16.enabled` would cast BatchNorm's statistics as well; autocast leaves them alone.
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[settings.precision]
        config["torch_autocast"] = {"enabled": True, "dtype": dtype}
    return config


class CheckpointSettings(Settings):
    """A checkpoint is written after each epoch, at a stop, and in between as often as set here."""

    every_minutes: float | None = Field(10.0, gt=0, le=1e6)
    """Time between checkpoints; null: only after epochs."""
    every_steps: int | None = Field(None, ge=1, le=10**9)
    """Steps between checkpoints; null: steps do not count."""
    keep: int = Field(2, ge=1, le=10_000)
    """Checkpoints that stay: the newest, and those to fall back on when it is damaged."""
    grace_s: float = Field(25.0, gt=0, le=1e6)
    """Seconds that the ranks have to save and end after SIGTERM. `torchrun`, DeepSpeed's launcher
    and Slurm kill after 30 s."""
    bad_steps: int = Field(5, ge=0, le=10**9)
    """Most steps in a row without a finite loss, which are skipped; one more ends the training."""


CHECKPOINTS = "checkpoints"
"""Name of the run's folder with one folder for each member in training."""
