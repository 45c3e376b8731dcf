"""What the package costs, measured in one run beside what it is compared with::

    python -m slackwater.bench --json

Each figure is a ratio. ``pull``, ``push`` and ``smallest push`` are beside the same calls of the Rust library, made in this process; ``step`` is one step of a
perceptron of 25 million parameters in 4 processes beside DistributedDataParallel over Gloo, for which PyTorch has to be installed; ``straggler`` is
that of a small one where each step one worker, at random, takes three times as long; ``slow links`` is a step of the large one by 4 hosts, each with a
worker and a server, where one bit of each gradient goes up, and one of each weight's change down (``on="servers"``), over links of 200 Mbit/s: network namespaces, which take root to make.
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
from typing import Any, Callable

from . import _launch, _links, _run
from ._table import Table

MEBIBYTES = 64
WORKERS = 4
# Steps that are counted, after some that warm up.
STEPS, WARM_STEPS = 8, 3
# Over slow links a step of Gloo's takes seconds, and so does silence.
SLOW_RATE, SLOW_STEPS, SLOW_WARM_STEPS, SLOW_PATIENCE, SLOW_LIMIT_SECONDS = "200mbit", 3, 1, 60.0, 400
# A step of the small model, and how long a worker that is delayed takes beyond it.
PASS_SECONDS, DELAY_SECONDS, DELAYED_STEPS = 0.02, 0.04, 60


def best(call: Callable[[], Any], times: int) -> float:
    """The shortest of several, in seconds: what else runs on the machine only makes it longer."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def tables(servers: int) -> dict[str, float]:
    """Large and small pushes and pulls between processes through shared memory, beside those of the Rust library."""
    import numpy

    meet = _launch.free_address()
    serving = _launch.start_servers(meet, servers, 1, None, 10.0, True)
    try:
        with _run.init(meet):
            rows = MEBIBYTES * 1024
            table = Table("large", rows=rows, width=256, updater="sum", slack=0)
            small = Table("small", rows=1, updater="sum", slack=0)
            values, out = numpy.ones((rows, 256), "float32"), numpy.zeros((rows, 256), "float32")
            one = numpy.ones(1, "float32")
            found: dict[str, float] = {}
            pushes, pulls, rust_pushes, rust_pulls = [], [], [], []
            # In turns, so that both meet the same machine.
            for _ in range(6):
                pushes.append(best(lambda: table.push(values), 2))
                rust_pushes.append(table._table.time_push(values, 2))
                pulls.append(best(lambda: table.pull(out=out), 2))
                rust_pulls.append(table._table.time_pull(2))
            found["push over Rust's"] = min(rust_pushes) / min(pushes)
            found["pull over Rust's"] = min(rust_pulls) / min(pulls)
            found["push GB/s"] = MEBIBYTES * 2**20 / min(pushes) / 1e9
            found["pull GB/s"] = MEBIBYTES * 2**20 / min(pulls) / 1e9
            ours = statistics.median(best(lambda: small.push(one), 1) for _ in range(3000))
            rust = statistics.median(small._table.time_push(one, 1) for _ in range(3000))
            found["smallest push, µs"] = ours * 1e6
            found["smallest push over Rust's, µs more"] = (ours - rust) * 1e6
            return found
    finally:
        _launch.end(serving, 15.0)


def _perceptron(torch: Any) -> Any:
    """25 million parameters."""
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(2040, 2040), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(2040, 10))


def steps(way: str, store: str, codecs: Any = None, counted: int = STEPS, warm: int = WARM_STEPS) -> float:
    """The median of a step's seconds, in one of the workers."""
    import torch

    torch.set_num_threads(1)
    rank = _run.rank()
    model = _perceptron(torch)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4)
    called = model
    if way == "gloo":
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=_run.size())
        called = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from .torch import DistributedOptimizer

        optimizer = DistributedOptimizer(optimizer, model, codecs=codecs, on="servers" if codecs else "workers")
    inputs, labels = torch.randn(8, 2040), torch.randint(0, 10, (8,))
    taken = []
    for step in range(warm + counted):
        _run.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(called(inputs), labels).backward()
        optimizer.step()
        if step >= warm:
            taken.append(time.perf_counter() - begin)
    if way == "gloo":
        torch.distributed.destroy_process_group()
    return statistics.median(taken)


def delayed(way: str, store: str) -> float:
    """Seconds for all steps of a small model where each step one worker, at random but the same for every way, is delayed."""
    import torch

    torch.set_num_threads(1)
    rank, size = _run.rank(), _run.size()
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    called = model
    if way == "gloo":
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        called = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from .torch import DistributedOptimizer

        optimizer = DistributedOptimizer(optimizer, model, slack=3)
    inputs, labels = torch.randn(8, 64), torch.randint(0, 10, (8,))
    chosen = random.Random(7)
    _run.barrier()
    begin = time.perf_counter()
    for _ in range(DELAYED_STEPS):
        time.sleep(PASS_SECONDS + (DELAY_SECONDS if chosen.randrange(size) == rank else 0.0))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(called(inputs), labels).backward()
        optimizer.step()
    _run.barrier()
    taken = time.perf_counter() - begin
    if way == "gloo":
        torch.distributed.destroy_process_group()
    return taken


def step_on_a_host(way: str, store: str) -> None:
    """What the process of a host does: says the seconds that a step took."""
    with _run.init(patience=SLOW_PATIENCE, shared_memory=False):
        print(steps(way, store, None if way == "gloo" else [way], SLOW_STEPS, SLOW_WARM_STEPS), flush=True)


def over_slow_links() -> dict[str, float]:
    """A step over links of 200 Mbit/s, each host with a worker and a server, beside DistributedDataParallel's."""
    found: dict[str, float] = {}
    with _links.Hosts(WORKERS, SLOW_RATE) as hosts, tempfile.TemporaryDirectory() as folder:

        def seconds(way: str, port: int) -> float:
            told = {name: value for name, value in os.environ.items() if not name.startswith("SLACKWATER_")}
            told |= {"WORLD_SIZE": str(WORKERS), "MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(port)}
            told |= {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
            work = f"from slackwater import bench; bench.step_on_a_host({way!r}, {os.path.join(folder, way)!r})"
            started = [
                hosts.start(rank, [sys.executable, "-c", work], {**told, "RANK": str(rank)}) for rank in range(WORKERS)
            ]
            try:
                said = [process.communicate(timeout=SLOW_LIMIT_SECONDS)[0] for process in started]
            finally:
                _launch.end(started, 0.0)
            if any(process.returncode != 0 for process in started):
                raise subprocess.SubprocessError(f"a host's process failed: {[process.returncode for process in started]}")
            return max(float(text.split()[-1]) for text in said)

        gloo = seconds("gloo", 29500)
        found["slow links by Gloo, ms"] = gloo * 1e3
        found["slow links over Gloo's"] = seconds("1bit", 29600) / gloo
    return found


def beside_gloo(servers: int) -> dict[str, float]:
    """Steps of training in processes, beside DistributedDataParallel's."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        places = (os.path.join(folder, str(number)) for number in range(100))

        def seconds(work: Callable[[str, str], float], way: str, shared_memory: bool = True) -> float:
            told = _launch.launch(work, way, next(places), workers=WORKERS, servers=servers, shared_memory=shared_memory)
            return max(told)

        gloo = seconds(steps, "gloo")
        found["step by Gloo, ms"] = gloo * 1e3
        found["step over Gloo's"] = seconds(steps, "slackwater") / gloo
        found["step over TCP over Gloo's"] = seconds(steps, "slackwater", False) / gloo
        found["straggler over Gloo's"] = seconds(delayed, "slackwater") / seconds(delayed, "gloo")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one object, for a program to read")
    parser.add_argument("--servers", type=int, default=2)
    given = parser.parse_args()
    found = tables(given.servers)
    try:
        import torch  # noqa: F401

        found.update(beside_gloo(given.servers))
        if _links.Hosts.are_possible():
            found.update(over_slow_links())
        else:
            print("slackwater.bench: no slow links, which take root, ip and tc to make", file=sys.stderr)
    except ImportError:
        pass
    if given.json:
        print(json.dumps({name: round(number, 3) for name, number in found.items()}))
    else:
        for name, number in found.items():
            print(f"{name:40} {number:10.3f}")
    return 0


if __name__ == "__main__":
    # The processes that are launched import these functions by name, not from a main program.
    from slackwater.bench import main as measured

    raise SystemExit(measured())
