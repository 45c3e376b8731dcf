"""Hosts that are network namespaces of this one, joined by a switch over links of bounded speed: for ``slackwater.bench``. Needs root, ``ip`` and ``tc``."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any


class Hosts:
    """So many hosts, until the ``with`` block ends: numbers from 0, addresses 10.213.0.1 and up, their network device ``cable``."""

    def __init__(self, count: int, rate: str):
        self.count, self.rate = count, rate
        self.name = f"slackwater-{os.getpid()}"

    @staticmethod
    def are_possible() -> bool:
        """Whether this process may make them."""
        return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None

    @staticmethod
    def address(number: int) -> str:
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
            # Each way by itself, as a cable of that speed has it.
            for namespace, device in ((hub, port), (host, "cable")):
                _call(f"tc -n {namespace} qdisc add dev {device} root tbf rate {self.rate} burst 128kb latency 100ms")

    def _remove(self) -> None:
        for name in [f"{self.name}-{number}" for number in range(self.count)] + [f"{self.name}-hub"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def start(self, number: int, command: list[str], environment: dict[str, str]) -> subprocess.Popen:
        """Starts a command on a host."""
        inside = ["ip", "netns", "exec", f"{self.name}-{number}", *command]
        return subprocess.Popen(inside, env=environment, stdout=subprocess.PIPE, text=True)


def _call(line: str) -> None:
    done = subprocess.run(line.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"`{line}` failed: {done.stderr.strip()}")
