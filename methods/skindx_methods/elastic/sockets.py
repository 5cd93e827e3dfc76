"""Sockets of a process group: a thread shuts them, and what waits for lost ranks fails at once.

Torch's gloo has no `abort` (2.15: it returns and does nothing): a collective whose peer hangs or is
cut off waits until `engine.timeout_s` is over. Its sockets are those in the event loops that it has
made, which Linux lists in /proc.
"""

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# What a rank writes with each heartbeat, and a door at which others see that its process lives.

State = Literal["waiting", "in", "left"]


@dataclass(frozen=True)
class Card:
    """A rank's place and state, as the others read it in the store."""

    slot: int
    life: int
    state: State
    number: int
    """Number of the group that it waits for, is in, or has left."""
    beat: int
    host: str
    address: tuple[str, int]
    """Address at which its process listens: a refused call shows that it has ended."""
    why: str = ""
    """Reason why it has left."""


def family(address: tuple[str, int]) -> socket.AddressFamily:
    """Return IPv4 or IPv6, as the address is."""
    return socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0][0]


def listener(host: str) -> socket.socket:
    """Return a socket that takes calls as long as this process lives, stopped or not."""
    result = socket.create_server((host, 0), family=family((host, 0)), backlog=64)
    result.setblocking(False)
    return result


def drain(door: socket.socket) -> None:
    """Make room for further calls."""
    with suppress(OSError):
        while True:
            door.accept()[0].close()


def has_ended(card: Card) -> bool:
    """Tell whether nobody listens any more where the rank's process did."""
    host, _ = card.address
    if host.startswith("127.") and card.host != socket.gethostname():
        return False  # it names itself so, and we would call our own door
    try:
        with socket.create_connection(card.address, timeout=0.3):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


Socket = tuple[int, str]
"""Descriptor, and what it stands for: a number may be given out again."""

_OPEN = Path("/proc/self/fd")
_LOOP = "anon_inode:[eventpoll]"


def open_sockets() -> set[Socket]:
    """Return the sockets of this process."""
    return {(number, link) for number, link in _descriptors() if link.startswith("socket:")}


def sockets_of_loops() -> set[Socket]:
    """Return the sockets that an event loop of this process waits for."""
    polled: set[int] = set()
    for number, link in _descriptors():
        if link == _LOOP:
            with suppress(OSError):
                text = Path(f"/proc/self/fdinfo/{number}").read_text()
                polled |= {int(match) for match in re.findall(r"^tfd:\s+(\d+)", text, re.M)}
    return {(number, link) for number, link in open_sockets() if number in polled}


def shut(sockets: Iterable[Socket]) -> None:
    """End the connections of these sockets; what waits for one of them fails."""
    for number, link in sockets:
        with suppress(OSError):
            if str((_OPEN / str(number)).readlink()) != link:
                continue
            # A duplicate: closing it leaves the descriptor to its owner.
            with socket.socket(fileno=os.dup(number)) as ours:
                # gloo ends the process when a socket is shut on which it waits for ranks to call.
                if not ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    ours.shutdown(socket.SHUT_RDWR)


def _descriptors() -> Iterable[tuple[int, str]]:
    for one in _OPEN.iterdir():
        with suppress(OSError):
            yield int(one.name), str(one.readlink())
