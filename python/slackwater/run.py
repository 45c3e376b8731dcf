"""Runs a script as each worker of a run on this host, as ``torchrun`` does::

    python -m slackwater.run --workers 4 --servers 2 train.py --epochs 3

The script calls ``slackwater.init()``, which finds the run. RANK, LOCAL_RANK, WORLD_SIZE and the like are set for it, too. Scripts that
are started by ``torchrun`` itself need nothing of this.
"""

import argparse
import sys

from ._launch import run_script


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", "--nproc-per-node", "--nproc_per_node", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--copies", type=int, help="let processes be lost: how many servers hold each part of every table")
    parser.add_argument("--patience", type=float, default=10.0, help="after how many silent seconds a process counts as lost")
    parser.add_argument("--tcp", action="store_true", help="talk over TCP, as processes of different hosts do")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    command = [sys.executable] + (["-m"] if given.module else []) + [given.script] + given.arguments
    return run_script(command, given.workers, given.servers, given.copies, given.patience, not given.tcp)


if __name__ == "__main__":
    raise SystemExit(main())
