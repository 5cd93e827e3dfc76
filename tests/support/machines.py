"""Machines of a cluster on this one: a network, host name, hosts file and processes of their own.

They share the file system, as nodes share storage. The first one is the head: a bridge joins the
others to it. `off` is a power cut: SIGKILL for all that runs there.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

_INIT = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the first process of a machine buries orphans
print(flush=True)
while True:
    signal.pause()
"""
_BOOT = """
hostname "$1" && mount --bind "$2" /etc/hosts &&
mount -t tmpfs none /run && mkdir /run/sshd && exec "$3" -S -c "$4"
"""
_APART = ("--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass
class Machine:
    """One machine; `on` and `off` as often as needed."""

    name: str
    address: str
    hosts: Path
    _power: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _pid: int = field(default=0, init=False)

    def on(self) -> None:
        boot = ["bash", "-c", _BOOT, "boot", self.name, str(self.hosts), sys.executable, _INIT]
        # It dies with this process, whatever ends that one, and all that runs there with it.
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", *_APART, *boot]
        self._power = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *apart],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._power.stdout is not None
        assert self._power.stdout.readline(), f"{self.name} does not start"
        (init,) = psutil.Process(self._power.pid).children()
        self._pid = init.pid

    def off(self) -> None:
        if self._power is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        self._power.wait()
        assert self._power.stdout is not None
        self._power.stdout.close()
        self._power = None

    def start(
        self,
        command: Sequence[object],
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> "subprocess.Popen[str]":
        """Start a program there; its output, both streams, is to be read."""
        inside = ["nsenter", f"--target={self._pid}", "--net", "--uts", "--mount", "--pid"]
        return subprocess.Popen(
            [*inside, "--wd=/", "--", *map(str, command)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=None if env is None else dict(env),
        )

    def run(
        self, *command: object, env: Mapping[str, str] | None = None, timeout_s: float = 60
    ) -> tuple[int, str]:
        """Run a program there to its end; return its code and output."""
        with self.start(command, env) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return process.returncode, output

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return what runs there, by a word of its command line; the first process is left out."""
        if self._power is None:
            return []
        there = Path(f"/proc/{self._pid}/ns/pid").readlink()
        result = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if process.pid == self._pid or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                same = Path(f"/proc/{process.pid}/ns/pid").readlink() == there
                if same and word in " ".join(process.cmdline()):
                    result.append(process)
        return result


@contextmanager
def machines(folder: Path, *names: str) -> Iterator[list[Machine]]:
    """Yield running machines, the head first, or skip where they cannot be made."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("machines of their own need root, iproute2 and util-linux")
    hosts = folder / "hosts"
    addresses = {name: f"10.79.0.{number}" for number, name in enumerate(names, 1)}
    lines = [f"{address} {name}" for name, address in addresses.items()]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    result = [Machine(name, address, hosts) for name, address in addresses.items()]
    try:
        try:
            _join(result)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        for machine in result:
            machine.on()
        yield result
    finally:
        for machine in result:
            machine.off()
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", machine.name)


def _join(names: Sequence[Machine]) -> None:
    head, *others = names
    for machine in names:
        with suppress(subprocess.CalledProcessError):  # left by a test that was killed
            _ip("netns", "delete", machine.name)
        _ip("netns", "add", machine.name)
        _ip("-n", machine.name, "link", "set", "lo", "up")
    _ip("-n", head.name, "link", "add", "eth0", "type", "bridge")
    for number, machine in enumerate(others):
        end = ("type", "veth", "peer", "name", "eth0", "netns", machine.name)
        _ip("-n", head.name, "link", "add", f"port{number}", *end)
        _ip("-n", head.name, "link", "set", f"port{number}", "master", "eth0", "up")
    for machine in names:
        _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth0")
        _ip("-n", machine.name, "link", "set", "eth0", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def wait_for(what: str, seconds: float, is_so: Callable[[], object], every_s: float = 0.2) -> None:
    """Wait until something is so. Raises AssertionError with `what` when it takes too long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not in {seconds:g} s"
        time.sleep(every_s)
