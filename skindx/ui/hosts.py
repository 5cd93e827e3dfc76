"""Host names that the server accepts, so that another site's page cannot rebind a name to it.

DNS rebinding: a site that a user visits maps its own name to this machine's address. The browser
then takes this server for that site and lets its scripts read every answer. The name that the
browser asked for stands in the Host header, so unknown names are refused. An IP address cannot be
mapped to another machine, so addresses are answered where the network may reach them.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from contextlib import suppress

from skindx.core.errors import UserError
from skindx.ui.asgi import NAMED, App, Message, Receive, Send, headers, refuse

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_LONGEST = 253


class HostCheck:
    """ASGI middleware that refuses (421) requests for a name that is not this server's.

    `host` is the address that the server listens on, `allowed` further names or addresses. Raises
    UserError for an allowed name that is no host name.
    """

    def __init__(self, app: App, host: str, allowed: Sequence[str] = ()) -> None:
        self.app = app
        self._names = {"localhost", host.lower(), *(_checked(name) for name in allowed)}
        self._any_address = not is_loopback(host)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on requests for this server."""
        if scope["type"] == "http":
            hosts = headers(scope, b"host")
            named = [*hosts, *scope.get(NAMED, ())]
            # HTTP/1.0 knows no Host, and checks of health use it; every browser sends one.
            old = scope.get("http_version") == "1.0" and not hosts
            wrong = [name for name in named if not self._is_ours(host_name(name))]
            if wrong or (len(hosts) != 1 and not old):
                await refuse(send, 421, _refusal(wrong or hosts), {"connection": "close"})
                return
        await self.app(scope, receive, send)

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback or str(address) in self._names


def host_name(header: str) -> str:
    """Return the name or address of a Host header in lower case, without port; "" for neither."""
    name, port = header.strip().lower(), ""
    if name.startswith("["):
        name, _, port = name[1:].partition("]")
        if "." not in name and ":" not in name:
            return ""
        port = port.removeprefix(":")
    else:
        name, _, port = name.partition(":")
    return name.removesuffix(".") if port == "" or port.isdigit() else ""


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on can be reached from this machine alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a name with an empty part cannot even be asked for
        return False
    return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in found)


def _checked(name: str) -> str:
    ours = name.strip().lower().removesuffix(".")
    with suppress(ValueError):
        return str(ipaddress.ip_address(ours.strip("[]")))
    if len(ours) > _LONGEST or not _NAME.fullmatch(ours):
        raise UserError(
            f"--allowed-host {name!r} is no host name; give the name alone, such as "
            "skin.example.org, without https:// and without a port."
        )
    return ours


def _refusal(named: Sequence[str]) -> str:
    shown = host_name(named[0]) if len(named) == 1 else ""
    if not _NAME.fullmatch(shown) or len(shown) > _LONGEST:
        return "The request does not say which host it is for."
    return (
        f"This server does not answer to the name {shown}; the operator can allow it: "
        f"skindx serve BUNDLE --allowed-host {shown}"
    )
