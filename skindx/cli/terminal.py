"""What a command prints gives no orders to a terminal, whatever names of files are in it."""

import re
import sys
from typing import TextIO

from skindx.core.text import printable

_STYLES = re.compile(r"(\x1b\[[0-9;]*m|\x1b\[[0-9]*[ABGKJ]|\x1b\[\?25[lh]|[\n\r\t])")
"""What rich writes for colours and progress bars: nothing of it changes the terminal for good."""
_PLAIN = re.compile(r"([\n\r\t])")


class PrintableStream:
    """A text stream on which control characters become U+FFFD; to a terminal styles may pass.

    Undecodable bytes of file names become U+FFFD too, so that printing one is no error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._kept = _STYLES if stream.isatty() else _PLAIN

    def write(self, text: str) -> int:
        """Write text; the parts that are kept stand at odd places."""
        parts = self._kept.split(text)
        parts[::2] = map(printable, parts[::2])
        self._stream.write("".join(parts))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def guard_terminal() -> None:
    """Print through such streams from here on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PrintableStream):
            setattr(sys, name, PrintableStream(stream))
