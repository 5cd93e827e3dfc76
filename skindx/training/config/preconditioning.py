"""Checks of engines and trunks that go with a preconditioner."""

from skindx.training.config.engine import EngineSettings
from skindx.training.config.preconditioner import KfacSettings


def check_preconditioner(
    member: str, settings: KfacSettings, engine: EngineSettings, trunk: str
) -> None:
    """Raise ValueError for what cannot be preconditioned."""
    what = f"member {member}: preconditioner.kind={settings.kind}"
    if engine.zero:
        raise ValueError(
            f"{what} works on whole gradients, which ZeRO shares out; set engine.zero=0, or leave "
            "preconditioner out"
        )
    if engine.precision == "fp16":
        raise ValueError(
            f"{what} needs gradients as they are, and fp16 scales them; set engine.precision=bf16"
        )
    for name in ("compile", "activation_checkpointing"):
        if getattr(engine, name):
            raise ValueError(
                f"{what} watches each layer, which engine.{name} hides; set engine.{name}=false"
            )
    if engine.schedule == "hop":
        raise ValueError(
            f"{what} would make hopping members several times larger; set engine.schedule=data or "
            "members"
        )
    if trunk != "trained":
        raise ValueError(f"{what} needs trunk=trained, and it is {trunk}; leave preconditioner out")
