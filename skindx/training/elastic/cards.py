"""What a rank writes with each heartbeat, and a door at which others see that its process lives."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

State = Literal["waiting", "in", "left"]


@dataclass(frozen=True)
class Card:
    """A rank's place and state, as the others read it in the store."""

    slot: int
    life: int
    state: State
    number: int
    """Of the group that it waits for, is in, or has left."""
    beat: int
    host: str
    address: tuple[str, int]
    """Where its process listens: who is refused there knows that it has ended."""
    why: str = ""
    """Why it has left."""


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
