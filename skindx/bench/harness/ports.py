"""A port of this machine that nobody uses."""

import socket


def free_port() -> int:
    """Return one; it may be taken by another process a moment later."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
