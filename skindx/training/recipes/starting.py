"""Where a member's first weights come from."""

from pathlib import Path

from skindx.models.classifier.pretrained import pretrained_file
from skindx.training.config.run import MemberSettings


def starting_weights(member: MemberSettings) -> Path | None:
    """Return the file that a member starts from, fetched if it must be; None: random weights.

    Raises UserError when timm's weights are wanted and cannot be had.
    """
    if member.pretrained:
        return pretrained_file(member)
    return member.weights
