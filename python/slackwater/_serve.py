"""A process of server threads, of the coordinator, or of both, in a run on this host.
``slackwater.launch`` and ``python -m slackwater.run`` start it."""

import argparse
import sys

from . import _lifetime, _slackwater


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slackwater._serve", description=__doc__)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--coordinate", type=int, nargs=2, metavar=("SERVERS", "WORKERS"))
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--failure-timeout", type=float, default=10.0)
    parser.add_argument("--join-limit", type=float, default=300.0)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--launcher", type=int, help="id of the process that starts this one: this process ends when that one ends")
    given = parser.parse_args()
    if given.launcher is not None:
        _lifetime.end_with(given.launcher)
    coordinate = tuple(given.coordinate) if given.coordinate else None
    server = _slackwater.Server(
        given.coordinator, given.threads, coordinate, given.replicas, given.join_limit, given.failure_timeout, not given.tcp
    )
    try:
        server.wait()
    except _slackwater.SlackwaterError as error:
        print(f"slackwater server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
