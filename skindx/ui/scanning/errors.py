"""Why a scan is not taken although nothing is wrong with the photos."""

from skindx.core.errors import UserError


class ScanRefused(UserError):  # noqa: N818
    """Too many scans, of this client (429) or in all (503)."""

    def __init__(self, status: int, sentence: str, retry_after_s: int) -> None:
        super().__init__(f"{sentence} try again in {retry_after_s} seconds.")
        self.status, self.retry_after_s = status, retry_after_s


class NoScans(UserError):  # noqa: N818
    """This server cannot scan: 501 without the packages, 409 with a bundle without a detector."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
