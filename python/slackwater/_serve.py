"""A process of server threads, of the coordinator, or of both, in a run on this host.
``slackwater.launch`` and ``python -m slackwater.run`` start it."""

import argparse
import json
import os
import signal
import sys

from . import _lifetime, _slackwater


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slackwater._serve", description=__doc__)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--coordinate", type=int, nargs=2, metavar=("SERVERS", "WORKERS"))
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--failure-timeout", type=float, default=10.0)
    parser.add_argument("--clock-timeout", type=float)
    parser.add_argument("--join-limit", type=float, default=300.0)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--launcher", type=int, help="id of the process that starts this one: this process ends when that one ends")
    parser.add_argument("--verdict", type=int, help="file descriptor to write to which node was lost, if the run ends by that")
    given = parser.parse_args()
    if given.launcher is not None:
        _lifetime.end_with(given.launcher)
    coordinate = tuple(given.coordinate) if given.coordinate else None
    server = _slackwater.Server(
        given.coordinator,
        given.threads,
        coordinate,
        given.replicas,
        given.join_limit,
        given.failure_timeout,
        not given.tcp,
        clock_timeout=given.clock_timeout,
    )
    signal.signal(signal.SIGTERM, _leave)
    was_told = False
    try:
        try:
            server.wait()
        except _Leaving:
            # Interrupting the first wait has told the servers to leave.
            was_told = True
            server.wait()
    except _slackwater.SlackwaterError as error:
        node = getattr(error, "node", None)
        if node is not None or not was_told:
            print(f"slackwater server: {error}", file=sys.stderr)
        if node is not None and given.verdict is not None:
            os.write(given.verdict, json.dumps({"node": node, "reason": error.reason}, ensure_ascii=False).encode())
        return 1
    return 0


class _Leaving(BaseException):
    """SIGTERM came."""


def _leave(*_) -> None:
    # A second one ends the process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise _Leaving


if __name__ == "__main__":
    raise SystemExit(main())
