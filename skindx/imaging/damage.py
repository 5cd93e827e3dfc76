"""Why bytes do not become an image."""


class DamagedImage(ValueError):  # noqa: N818
    """These bytes do not become an image; the message says why, `reason` is a fixed short word.

    not-a-picture, unsupported-format, too-many-pixels, decode-memory (it takes too much memory),
    decode-timeout (it takes too long), damaged.
    """

    def __init__(self, message: str, reason: str = "damaged") -> None:
        super().__init__(message)
        self.reason = reason


def refusal(error: Exception) -> DamagedImage:
    """Return what an exception from a decoder means.

    Hostile bytes raise every kind (SyntaxError, struct.error, zlib.error …); all of them mean the
    same to a dataset, but for a lack of memory.
    """
    if isinstance(error, DamagedImage):
        return error
    message = " ".join(str(error).split()) or type(error).__name__
    short = isinstance(error, MemoryError) or "memory" in message.lower()
    return DamagedImage(message, "decode-memory" if short else "damaged")
