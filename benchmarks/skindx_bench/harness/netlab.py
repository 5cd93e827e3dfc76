"""An emulated cluster on one machine: network namespaces, joined by a bridge over limited links."""

import math
import os
import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from skindx.core.errors import UserError

INTERFACE = "eth0"
"""Each node's link to the bridge, as its processes see it."""

_NAMED = Path("/run/netns")  # where `ip` keeps the names of namespaces
_OURS = re.compile(r"skindx-(?P<pid>\d+)-(?P<started>\d+)-[0-9a-f]+-(\d+|switch)")

_WHEN_THE_OWNER_ENDS = (
    'trap \'\' TERM INT HUP; cat; for name in "$@"; do ip netns del "$name" 2>/dev/null; done; true'
)


@dataclass(frozen=True)
class Link:
    """Capacity of a node's link, each way."""

    rate_mbit: float

    @property
    def burst_kb(self) -> int:
        """What may pass faster than the rate, kB.

        The kernel keeps a rate only with a burst of about a millisecond; with a larger one small
        messages beat the wire.
        """
        return max(16, math.ceil(0.128 * self.rate_mbit))

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes a second."""
        return self.rate_mbit * 1e6 / 8


class NetLab:
    """`nodes` network namespaces, from `with` on; they are gone when their owner is, however.

    A process of its own waits for the owner's end, which may be a kill, and takes them down; if
    that one was killed too, the next lab does. A process in a namespace should end with its owner.
    """

    def __init__(self, nodes: int, link: Link) -> None:
        token = f"skindx-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(3)}"
        self.nodes = [f"{token}-{node}" for node in range(nodes)]
        self._switch = f"{token}-switch"
        self._link = link

    def __enter__(self) -> Self:
        require()
        remove_leftovers()
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _WHEN_THE_OWNER_ENDS, "sh", *self.nodes, self._switch],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._build()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._take_down()

    def _build(self) -> None:
        _run("ip", "netns", "add", self._switch)
        bridge = f"ip -n {self._switch} link add bridge0 type bridge stp_state 0"
        _run(*bridge.split())
        _run("ip", "-n", self._switch, "link", "set", "bridge0", "up")
        for node, name in enumerate(self.nodes):
            inside, outside = ("ip", "-n", name), ("ip", "-n", self._switch)
            _run("ip", "netns", "add", name)
            # An idle connection must not begin each step with a small window.
            no_restart = "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
            _run(*self.command(node, "/bin/sh", "-c", no_restart))
            _run(*outside, *f"link add port{node} type veth peer name {INTERFACE}".split(),
                 "netns", name)  # fmt: skip
            _run(*outside, "link", "set", f"port{node}", "master", "bridge0", "up")
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "addr", "add", f"{self.address(node)}/24", "dev", INTERFACE)
            _run(*inside, "link", "set", INTERFACE, "up")
        self.limit(self._link)

    def limit(self, link: Link) -> None:
        """Give every link another rate, both ways: out of the node, and out of the bridge."""
        words = f"root tbf rate {link.rate_mbit}mbit burst {link.burst_kb}kb latency 20ms".split()
        for node, name in enumerate(self.nodes):
            _run("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, *words)
            _run("tc", "-n", self._switch, "qdisc", "replace", "dev", f"port{node}", *words)
        self._link = link

    def cut(self, node: int) -> None:
        """Take a node's link down at the switch: nothing passes, and neither side is told."""
        _run("ip", "-n", self._switch, "link", "set", f"port{node}", "down")

    def mend(self, node: int) -> None:
        """Bring a node's link up again."""
        _run("ip", "-n", self._switch, "link", "set", f"port{node}", "up")

    @property
    def link(self) -> Link:
        """Current rate of each link."""
        return self._link

    def address(self, node: int) -> str:
        """Return the node's IPv4 address."""
        return f"10.77.0.{node + 1}"

    def namespace(self, node: int) -> Path:
        """Return the file of a node's network namespace."""
        return _NAMED / self.nodes[node]

    def command(self, node: int, *words: str) -> list[str]:
        """Return the command that runs `words` in a node."""
        return ["ip", "netns", "exec", self.nodes[node], *words]

    def _take_down(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


def transmitted() -> int:
    """Return how many bytes the link of this process's node has carried outwards."""
    import psutil

    return int(psutil.net_io_counters(pernic=True, nowrap=False)[INTERFACE].bytes_sent)


def require() -> None:
    """Raise UserError with what is missing where no lab can be built."""
    # Where `ip` and `tc` are, which is not on everyone's path.
    folders = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*folders, "/usr/sbin", "/sbin"]))
    missing = []
    if not sys.platform.startswith("linux"):
        missing.append("Linux")
    elif os.geteuid() != 0:
        missing.append("root (run it with sudo, or in a container with --privileged)")
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if tools:
        missing.append(f"{' and '.join(tools)} (apt-get install iproute2)")
    if missing:
        raise UserError(
            "an emulated cluster needs network namespaces, and here is missing: "
            f"{'; '.join(missing)}."
        )


def remove_leftovers() -> None:
    """Remove namespaces whose owner has ended without taking them down."""
    for path in _NAMED.iterdir() if _NAMED.is_dir() else ():
        match = _OURS.fullmatch(path.name)
        if match and _started(int(match["pid"])) != match["started"]:
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks after boot; empty: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(
            f"no emulated cluster can be built here: `{' '.join(command)}` said "
            f"{done.stderr.strip()!r}; it takes the rights to make network namespaces (a "
            "container has them with --privileged) and a kernel with bridge, veth and tbf."
        )
