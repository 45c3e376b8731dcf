"""Runs a script as each worker of a run on this host, as ``torchrun`` does::

    python -m slackwater.run --workers 4 --servers 2 train.py --epochs 3

The script calls ``slackwater.init()``, which joins the run. RANK, LOCAL_RANK, WORLD_SIZE and
torchrun's other variables are set too. Scripts that ``torchrun`` starts do not need this command.
On Linux all processes end with this one, even if it is killed.
"""

import argparse
import sys

from ._launch import run_script


def at_least_one(given: str) -> int:
    """Parses a whole number from 1 on."""
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"a run needs at least one, not {given}")
    return int(given)


def seconds(given: str) -> float:
    """Parses a number of seconds above 0."""
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    # This also refuses NaN.
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"cannot wait {given} s; give a number of seconds above 0")
    return number


def this_host(given: str) -> int:
    """Parses torchrun's number of hosts, which must be 1."""
    if given not in ("1", "1:1"):
        raise argparse.ArgumentTypeError(
            f"slackwater.run starts processes on this host, not on {given}; on several hosts start the script by "
            "torchrun on each (torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py), "
            "which slackwater.init() finds, or call slackwater.init('host:port', rank=..., size=...)"
        )
    return 1


def main() -> int:
    """Parses the command line and runs the script. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m slackwater.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", "--nproc-per-node", "--nproc_per_node", type=at_least_one, default=4)
    parser.add_argument("--servers", type=at_least_one, default=2)
    parser.add_argument("--replicas", type=at_least_one, help="how many servers hold each shard of every table; with 2 the run survives a lost process")
    parser.add_argument("--failure-timeout", type=seconds, default=10.0, help="after how many silent seconds a process counts as lost")
    parser.add_argument("--clock-timeout", type=seconds, help="give up a worker that is in one clock for this many seconds without waiting for others")
    parser.add_argument("--tcp", action="store_true", help="talk over TCP, as processes of different hosts do")
    parser.add_argument("--standalone", action="store_true", help="accepted as in torchrun; every run is standalone")
    parser.add_argument("--nnodes", type=this_host, default=1, help="accepted as in torchrun; must be 1")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    command = [sys.executable] + (["-m"] if given.module else []) + [given.script] + given.arguments
    return run_script(command, given.workers, given.servers, given.replicas, given.failure_timeout, not given.tcp, given.clock_timeout)


if __name__ == "__main__":
    raise SystemExit(main())
