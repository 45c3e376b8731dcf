"""Benchmarks of the Python package, each measured in turn with a baseline::

    python -m slackwater.bench --json

Each figure is a ratio to the baseline: the median of several rounds, in which both take turns.

* ``tables``: large and small pushes and pulls. Baseline: the same calls of the Rust library in this
  process.
* ``step``: a training step of a perceptron with 25 million parameters in 4 processes, through
  shared memory and over TCP. Baseline: DistributedDataParallel over Gloo.
* ``straggler``: steps of a small model with slack 3; in each step one worker, at random, takes
  three times as long. Baseline: as above.
* ``links``: a step of the large model on 4 hosts, each with a worker and a server, over links of
  200 Mbit/s, with codec ``1bit`` in both directions and ``on="servers"``. The hosts are network
  namespaces, which only root can make. Baseline: as above.

All but ``tables`` need PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterator

from . import _launch, _links, _run
from ._table import Table

MEBIBYTES = 64
WORKERS = 4
# Counted rounds, and counted steps of each side in a round; a warm-up round and a warm-up step come
# before.
ROUNDS = 7
STEPS = 4
# Over slow links a step of Gloo takes seconds, so the failure timeout must be longer.
SLOW_RATE = "200mbit"
SLOW_ROUNDS = 2
SLOW_STEPS = 2
SLOW_FAILURE_TIMEOUT = 60.0
SLOW_LIMIT_SECONDS = 400
# For the straggler: a step of the small model, the additional time of a delayed worker, and steps
# in a round.
PASS_SECONDS = 0.02
DELAY_SECONDS = 0.04
DELAYED_STEPS = 60
DELAYED_ROUNDS = 3
# The target of each figure: at least, or at most.
WANTED = {
    "push over Rust's": ("≥", 0.85),
    "pull over Rust's": ("≥", 0.85),
    "smallest push over Rust's, µs more": ("≤", 15.0),
    "step over Gloo's": ("≤", 0.75),
    "straggler over Gloo's": ("≤", 0.65),
    "slow links over Gloo's": ("≤", 0.15),
}


def seconds_of(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def tables(servers: int) -> dict[str, float]:
    """Large and small pushes and pulls between processes through shared memory, compared with the
    Rust library."""
    import numpy

    coordinator = _launch.free_address()
    serving = _launch.Servers(coordinator, servers, 1, None, 10.0, True)
    try:
        with _run.init(coordinator):
            rows = MEBIBYTES * 1024
            table = Table("large", rows=rows, width=256, updater="sum", slack=0)
            small = Table("small", rows=1, updater="sum", slack=0)
            values, out = numpy.ones((rows, 256), "float32"), numpy.zeros((rows, 256), "float32")
            one = numpy.ones(1, "float32")
            pairs: dict[str, list[tuple[float, float]]] = {"push": [], "pull": [], "smallest": []}

            def both(name: str, ours: Callable[[], Any], rust: Callable[[], float]) -> None:
                # Each side goes first equally often, because the call before affects the time.
                if len(pairs[name]) % 2 == 0:
                    taken = seconds_of(ours)
                    pairs[name].append((taken, rust()))
                else:
                    theirs = rust()
                    pairs[name].append((seconds_of(ours), theirs))

            for _ in range(4 * ROUNDS):
                both("push", lambda: table.push(values), lambda: table._table.time_push(values, 1))
                both("pull", lambda: table.pull(out=out), lambda: table._table.time_pull(1))
            for _ in range(3000):
                both("smallest", lambda: small.push(one), lambda: small._table.time_push(one, 1))
            median = {name: [statistics.median(side) for side in zip(*pairs[name])] for name in pairs}
            found = {f"{name} over Rust's": median[name][1] / median[name][0] for name in ("push", "pull")}
            found |= {f"{name} GB/s": MEBIBYTES * 2**20 / median[name][0] / 1e9 for name in ("push", "pull")}
            found["smallest push, µs"] = median["smallest"][0] * 1e6
            found["smallest push over Rust's, µs more"] = (median["smallest"][0] - median["smallest"][1]) * 1e6
            return found
    finally:
        serving.end(15.0)


def _perceptron(torch: Any) -> Any:
    """A model with 25 million parameters."""
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(2040, 2040), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(2040, 10))


class Rivals:
    """Two copies of a model in this worker: one for DistributedDataParallel over Gloo, one for this
    package."""

    def __init__(self, model: Callable[[Any], Any], store: str, **options: Any):
        import torch

        from .torch import DistributedOptimizer

        torch.set_num_threads(1)
        self.torch = torch
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=_run.rank(), world_size=_run.size())
        theirs, ours = model(torch), model(torch)
        sgd = [torch.optim.SGD(each.parameters(), lr=1e-4) for each in (theirs, ours)]
        self.ways = {
            "Gloo": (torch.nn.parallel.DistributedDataParallel(theirs), sgd[0]),
            "ours": (ours, DistributedOptimizer(sgd[1], ours, **options)),
        }
        width = next(ours.parameters()).shape[1]
        self.inputs, self.labels = torch.randn(8, width), torch.randint(0, 10, (8,))

    def step(self, way: str) -> None:
        """A training step of one copy."""
        model, optimizer = self.ways[way]
        optimizer.zero_grad()
        self.torch.nn.functional.cross_entropy(model(self.inputs), self.labels).backward()
        optimizer.step()

    def end(self) -> None:
        self.torch.distributed.destroy_process_group()


Rounds = list[dict[str, float]]


def steps(store: str, rounds: int, count: int, options: dict[str, Any]) -> Rounds:
    """Seconds of a step of the large model by each side, in each round."""
    rivals = Rivals(_perceptron, store, **options)
    found: Rounds = []
    for _ in range(1 + rounds):
        found.append({})
        for way in rivals.ways:
            taken = []
            for _ in range(1 + count):
                _run.barrier()
                taken.append(seconds_of(lambda: rivals.step(way)))
            found[-1][way] = statistics.median(taken[1:])
            # Free one side's memory for the other.
            rivals.ways[way][1].zero_grad()
    rivals.end()
    return found[1:]


def _small(torch: Any) -> Any:
    """A small model."""
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def delayed(store: str, rounds: int) -> Rounds:
    """Seconds of a round of steps of the small model by each side. In each step one worker is
    delayed, at random but equally for both sides."""
    rivals = Rivals(_small, store, slack=3)
    found: Rounds = []
    for number in range(rounds):
        found.append({})
        for way in rivals.ways:
            chosen = random.Random(number)
            _run.barrier()
            begin = time.perf_counter()
            for _ in range(DELAYED_STEPS):
                time.sleep(PASS_SECONDS + (DELAY_SECONDS if chosen.randrange(_run.size()) == _run.rank() else 0.0))
                rivals.step(way)
            _run.barrier()
            found[-1][way] = time.perf_counter() - begin
    rivals.end()
    return found


def compared(name: str, told: list[Rounds]) -> dict[str, float]:
    """Combines the workers' measurements. The slowest worker's time counts."""
    rounds = [{way: max(worker[way] for worker in workers) for way in workers[0]} for workers in zip(*told)]
    return {
        f"{name} by Gloo, ms": statistics.median(taken["Gloo"] for taken in rounds) * 1e3,
        f"{name} over Gloo's": statistics.median(taken["ours"] / taken["Gloo"] for taken in rounds),
    }


def beside_gloo(servers: int) -> Iterator[dict[str, float]]:
    """Training steps in processes of one host, compared with DistributedDataParallel."""
    with tempfile.TemporaryDirectory() as folder:
        for name, shared_memory in (("step", True), ("step over TCP", False)):
            told = _launch.launch(
                steps, os.path.join(folder, name), ROUNDS, STEPS, {}, workers=WORKERS, servers=servers, shared_memory=shared_memory
            )  # fmt: skip
            yield compared(name, told)


def with_a_straggler(servers: int) -> dict[str, float]:
    """Training steps with a delayed worker, compared with DistributedDataParallel."""
    with tempfile.TemporaryDirectory() as folder:
        told = _launch.launch(delayed, os.path.join(folder, "store"), DELAYED_ROUNDS, workers=WORKERS, servers=servers)
    return compared("straggler", told)


def step_on_a_host(store: str) -> None:
    """Runs in the process of an emulated host: prints the seconds of its steps."""
    with _run.init(failure_timeout=SLOW_FAILURE_TIMEOUT, shared_memory=False, insecure=True):
        print(json.dumps(steps(store, SLOW_ROUNDS, SLOW_STEPS, {"codecs": ["1bit"], "on": "servers"})), flush=True)


def over_slow_links() -> dict[str, float]:
    """A training step over slow links, each host with a worker and a server, compared with
    DistributedDataParallel."""
    with _links.Hosts(WORKERS, SLOW_RATE) as hosts, tempfile.TemporaryDirectory() as folder:
        told = {name: value for name, value in os.environ.items() if not name.startswith("SLACKWATER_")}
        told |= {"WORLD_SIZE": str(WORKERS), "MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29500"}
        told |= {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
        work = f"from slackwater import bench; bench.step_on_a_host({os.path.join(folder, 'store')!r})"
        started = [hosts.start(rank, [sys.executable, "-c", work], {**told, "RANK": str(rank)}) for rank in range(WORKERS)]
        try:
            said = [process.communicate(timeout=SLOW_LIMIT_SECONDS)[0] for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        if any(process.returncode != 0 for process in started):
            raise subprocess.SubprocessError(f"a host's process failed: {[process.returncode for process in started]}")
        return compared("slow links", [json.loads(text.splitlines()[-1]) for text in said])


def measured(parts: list[str], servers: int) -> Iterator[dict[str, float]]:
    """Yields the figures of each part. Says on stderr which parts cannot run here."""
    if "tables" in parts:
        yield tables(servers)
    try:
        import torch  # noqa: F401
    except ImportError:
        return print("slackwater.bench: PyTorch is not installed; only the part `tables` runs", file=sys.stderr)
    if "step" in parts:
        yield from beside_gloo(servers)
    if "straggler" in parts:
        yield with_a_straggler(servers)
    if "links" in parts and _links.Hosts.are_possible():
        yield over_slow_links()
    elif "links" in parts:
        print("slackwater.bench: skips the part `links`, which needs root, ip and tc", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ["tables", "step", "straggler", "links"]
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", metavar="PART,…", default=",".join(every), help=f"the parts to run, of {', '.join(every)}")
    parser.add_argument("--servers", type=int, default=1, help="how many servers to run on this host beside the workers (default: 1)")
    given = parser.parse_args()
    parts = given.only.split(",")
    if unknown := set(parts) - set(every):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    found: dict[str, float] = {}
    for figures in measured(parts, given.servers):
        found |= figures
        for name, number in figures.items():
            sign, wanted = WANTED.get(name, ("", None))
            line = f"{name:40} {number:10.3f}" + (f"   wanted {sign} {wanted}" if wanted is not None else "")
            print(line, file=sys.stderr if given.json else sys.stdout, flush=True)
    if given.json:
        print(json.dumps({name: round(number, 3) for name, number in found.items()}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    # Import the module by name, so that launched processes can import its functions.
    from slackwater.bench import main as bench

    raise SystemExit(bench())
