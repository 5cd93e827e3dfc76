"""The frozen trunk of a member."""

from skindx.models.classifier.pretrained import pretrained_file
from skindx.models.classifier.trunk import Trunk, open_trunk
from skindx.training.config.run import MemberSettings


def load_trunk(member: MemberSettings) -> Trunk:
    """Return the trunk of a member that starts from given weights; loaded once in a process.

    Raises UserError for weights that do not fit, or cannot be had.
    """
    weights = pretrained_file(member) if member.pretrained else member.weights
    assert weights is not None  # `check` refused a frozen trunk without weights
    return open_trunk(member.network(), weights)
