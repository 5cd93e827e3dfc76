"""Two nodes on one machine: network namespaces with an address each, joined by a cable."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

# DeepSpeed runs `pdsh -S -f N -w HOST,HOST command…`; here a host is a namespace. As behind ssh,
# the command finds nothing of the caller's environment; the threads, which decide the last bits of
# a sum, are what each host would set for itself.
_PDSH = r"""#!/usr/bin/env bash
while getopts "Sf:w:u:" option; do [ "$option" = w ] && hosts=$OPTARG; done
shift $((OPTIND - 1))
declare -A namespaces=({namespaces})
number=0 worst=0 pids=()
for host in ${{hosts//,/ }}; do
  command="$*"
  ip netns exec "${{namespaces[$host]}}" env -i PATH="$PATH" HOME="$HOME" OMP_NUM_THREADS=1 \
    bash -c "${{command//%n/$number}}" > >(sed -u "s/^/$host: /") 2> >(sed -u "s/^/$host: /" >&2) &
  pids+=($!) number=$((number + 1))
done
for pid in "${{pids[@]}}"; do
  wait "$pid" || {{ code=$?; [ "$code" -le "$worst" ] || worst=$code; }}
done
exit "$worst"
"""


@dataclass(frozen=True)
class Nodes:
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    def start(self, node: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Start a Python on a node."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[node], sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def write_pdsh(self, folder: Path) -> None:
        """Write a program `pdsh` that reaches the nodes."""
        pairs = " ".join(f"[{a}]={n}" for a, n in zip(self.addresses, self.names, strict=True))
        (folder / "pdsh").write_text(_PDSH.format(namespaces=pairs))
        (folder / "pdsh").chmod(0o755)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Yield two nodes, or skip where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    mark = os.getpid()
    nodes = Nodes((f"skx{mark}a", f"skx{mark}b"), ("10.78.0.1", "10.78.0.2"))
    try:
        try:
            for name in nodes.names:
                _ip("netns", "add", name)
            ends = [("netns", name, "name", "cable0") for name in nodes.names]
            _ip(
                "link",
                "add",
                *ends[0][2:],
                *ends[0][:2],
                "type",
                "veth",
                "peer",
                *ends[1][2:],
                *ends[1][:2],
            )
            for name, address in zip(nodes.names, nodes.addresses, strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable0")
                for device in ("lo", "cable0"):
                    _ip("-n", name, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield nodes
    finally:
        for name in nodes.names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def wait_all(processes: Sequence[subprocess.Popen[str]], timeout_s: float) -> list[str]:
    """Return what the processes said, or fail when one ends badly; none outlives the call."""
    try:
        said = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), "\n".join(said)
    return said
