"""Towers of a run's settings become networks of timm and files of weights, before anything else."""

from skindx.core.errors import UserError
from skindx.models.towers import is_tower, resolve_tower
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.method import RunMethod


class Towers(RunMethod):
    """Members whose `model` names a tower of a hub, or a folder in the format of one."""

    def resolve(self, settings: TrainSettings) -> TrainSettings:
        """Write out what each tower's name stands for."""
        return with_towers(settings)


def with_towers(settings: TrainSettings) -> TrainSettings:
    """Return the settings with what each tower's name stands for; others are as they were.

    A hub's repository is fetched here, once. Raises UserError, which names the member.
    """
    members = tuple(_resolved(member) for member in settings.members)
    return settings.model_copy(update={"members": members})


def _resolved(member: MemberSettings) -> MemberSettings:
    if not is_tower(member.model):
        return member
    preprocess = member.preprocess if "preprocess" in member.model_fields_set else None
    given = (
        {name: getattr(preprocess, name) for name in preprocess.model_fields_set}
        if preprocess
        else {}
    )
    try:
        tower = resolve_tower(
            member.model,
            pretrained=member.pretrained,
            user_args=member.model_args,
            user_preprocess=given,
        )
    except UserError as error:
        raise UserError(f"member {member.name}: {error}") from None
    result = tower.network
    return member.model_copy(
        update={
            "model": result.model,
            "model_args": result.model_args,
            "preprocess": result.preprocess,
            "attention_pool": result.attention_pool,
            "weights": tower.weights or member.weights,
            "pretrained": False,
            "tower": tower.origin,
        }
    )
