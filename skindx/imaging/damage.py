"""Why bytes do not become an image."""


class DamagedPicture(ValueError):  # noqa: N818
    """These bytes do not become a picture; the message says why, `reason` is a fixed short word.

    not-a-picture, unsupported-format, too-many-pixels, decode-memory (it takes too much memory),
    decode-timeout (it takes too long), damaged.
    """

    def __init__(self, message: str, reason: str = "damaged") -> None:
        super().__init__(message)
        self.reason = reason
