"""What a gate says of a photo."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence on what is wrong with a photo and what to do about it."""

    message: str
    fatal: bool
    """Whether no diagnosis should rest on the photo; otherwise it is a remark beside one."""
