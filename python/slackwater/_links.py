"""Emulated hosts for ``slackwater.bench``: network namespaces of this host, connected to a switch
by links of limited bandwidth. Needs root, ``ip`` and ``tc``."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any


class Hosts:
    """``count`` emulated hosts with links of ``rate``, until the ``with`` block ends. They have
    numbers from 0, addresses from 10.213.0.1 on, and a network device ``cable``."""

    def __init__(self, count: int, rate: str):
        self.count, self.rate = count, rate
        self.name = f"slackwater-{os.getpid()}"

    @staticmethod
    def are_possible() -> bool:
        """Whether this process can make network namespaces."""
        return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None

    @staticmethod
    def address(number: int) -> str:
        """The IP address of a host."""
        return f"10.213.0.{number + 1}"

    def __enter__(self) -> "Hosts":
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._remove()

    def _make(self) -> None:
        hub = f"{self.name}-hub"
        _call(f"ip netns add {hub}")
        _call(f"ip -n {hub} link add switch type bridge")
        _call(f"ip -n {hub} link set switch up")
        for number in range(self.count):
            host, port = f"{self.name}-{number}", f"port{number}"
            _call(f"ip netns add {host}")
            _call(f"ip link add {port} netns {hub} type veth peer name cable netns {host}")
            _call(f"ip -n {hub} link set {port} master switch up")
            _call(f"ip -n {host} addr add {self.address(number)}/24 dev cable")
            _call(f"ip -n {host} link set cable up")
            _call(f"ip -n {host} link set lo up")
            # Limit each direction separately, as a full-duplex link does.
            for namespace, device in ((hub, port), (host, "cable")):
                _call(f"tc -n {namespace} qdisc add dev {device} root tbf rate {self.rate} burst 128kb latency 100ms")

    def _remove(self) -> None:
        for name in [f"{self.name}-{number}" for number in range(self.count)] + [f"{self.name}-hub"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def start(self, number: int, command: list[str], environment: dict[str, str]) -> subprocess.Popen:
        """Starts a command on a host. Its output is piped to this process."""
        inside = ["ip", "netns", "exec", f"{self.name}-{number}", *command]
        return subprocess.Popen(inside, env=environment, stdout=subprocess.PIPE, text=True)


def _call(line: str) -> None:
    """Runs a command; raises OSError if it fails."""
    done = subprocess.run(line.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"`{line}` failed: {done.stderr.strip()}")
