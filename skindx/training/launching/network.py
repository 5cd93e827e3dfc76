"""Choice of the network that the ranks of several nodes use."""

import ipaddress
import os
import socket

from skindx.core.errors import UserError

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def choose_interface(wanted: str | None, master: str) -> None:
    """Tell gloo and NCCL the interface between the nodes, `wanted` or the one towards `master`.

    Left to itself gloo asks what this host's own name resolves to, which on many systems is
    127.0.1.1: the other nodes then call their own door. NCCL looks at the interfaces themselves
    and gets only what the user sets. Variables that are set already stay.

    Raises UserError for an interface that this host does not have.
    """
    if wanted:
        names = [name for _, name in socket.if_nameindex()]
        if wanted not in names:
            raise UserError(
                f"engine.interface={wanted} is not on {socket.gethostname()}, "
                f"which has {', '.join(names)}."
            )
        os.environ[_GLOO] = os.environ[_NCCL] = wanted
    elif _GLOO not in os.environ and (found := interface_to(master)):
        os.environ[_GLOO] = found


def interface_to(address: str) -> str | None:
    """Return the interface that leads to a host, None for this machine's loopback or no way."""
    import psutil

    try:
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        if ipaddress.ip_address(target[0]).is_loopback:
            return None
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # UDP: asks the routing table, sends nothing
            own = probe.getsockname()[0]
    except (OSError, ValueError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == own for entry in addresses):
            return str(name)
    return None
