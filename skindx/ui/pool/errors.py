"""Why a case got no answer although nothing is wrong with it."""

from skindx.core.errors import UserError


class Busy(UserError):  # noqa: N818
    """Too many cases wait already."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            f"too many people are asking at once; try again in {retry_after_s} seconds."
        )
        self.retry_after_s = retry_after_s


class Unanswered(UserError):  # noqa: N818
    """A case that was tried and not answered: the server's fault, or a photo's that breaks it."""
