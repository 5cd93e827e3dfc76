"""Python runs this at start wherever this folder is on PYTHONPATH, in every child and grandchild.

A call to anything but this machine is written to SKINDX_NETWORK_LOG and refused. Audit hooks see
what goes through Python's sockets; a library that opens sockets in C++ (gloo) is not seen.
"""

import ipaddress
import os
import socket
import sys
from typing import Any

_LOG = os.environ["SKINDX_NETWORK_LOG"]
_NAMES = {"", "localhost", socket.gethostname().lower()}


def _is_here(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if not isinstance(host, str):
        return True  # no internet address: None, or the number of a netlink socket
    if host.lower() in _NAMES:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _is_here(host):
        with open(_LOG, "a", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"{event} {host}\n")
        raise ConnectionRefusedError(f"{event} {host}: only this machine may be reached")


sys.addaudithook(_watch)
