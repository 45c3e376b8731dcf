"""Runs of several processes: started by ``launch``, by ``slackwater.run`` and by torchrun."""

import os
import signal
import subprocess
import sys
import time

import numpy
import pytest

import slackwater
from slackwater import _launch


def add_up(count):
    table = slackwater.Table("sums", rows=3, updater="sum", slack=0)
    for _ in range(count):
        table.push(numpy.full(3, slackwater.rank() + 1, "float32"))
        slackwater.clock()
    slackwater.barrier()
    return slackwater.rank(), slackwater.size(), table.pull().tolist()


def fails(rank):
    if slackwater.rank() == rank:
        raise ValueError("no such data")
    slackwater.barrier()


def dies(rank):
    table = slackwater.Table("sums", rows=1, updater="sum", slack=0)
    for step in range(30):
        if slackwater.rank() == rank and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        table.push(numpy.ones(1, "float32"))
        slackwater.clock()
        table.pull()
    return table.pull().tolist()


def test_launch_returns_the_results_of_all_workers():
    results = slackwater.launch(add_up, 4, workers=3, servers=2)
    assert results == [(rank, 3, [24, 24, 24]) for rank in range(3)]
    assert not slackwater.is_initialized()


def test_local_rank_is_the_workers_number_on_its_host(monkeypatch):
    assert slackwater.launch(slackwater.local_rank, workers=2, servers=1) == [0, 1]
    coordinator = _launch.free_address()
    servers = _launch.Servers(coordinator, 1, 2, None, 5.0, True)
    other = subprocess.Popen([sys.executable, "-c", f"import slackwater; slackwater.init('{coordinator}', rank=0)"])
    with slackwater.init(coordinator, rank=1):
        assert slackwater.local_rank() == 1
        monkeypatch.setenv("LOCAL_RANK", "5")
        assert slackwater.local_rank() == 5
    assert other.wait() == 0
    servers.end(20.0)
    monkeypatch.delenv("LOCAL_RANK")
    with slackwater.init():
        assert slackwater.local_rank() == 0
    with pytest.raises(slackwater.RunError, match="in no run"):
        slackwater.local_rank()


def test_launch_runs_local_functions():
    offset = 5

    def local():
        table = slackwater.Table("t", rows=1, updater="sum", slack=0)
        table.push(numpy.full(1, offset, "float32"))
        slackwater.clock()
        return table.pull().tolist()

    assert slackwater.launch(local, workers=2, servers=1) == [[10], [10]]


def test_launch_names_the_worker_that_failed():
    with pytest.raises(slackwater.RunError, match="worker 1 failed: ValueError: no such data"):
        slackwater.launch(fails, 1, workers=2, servers=1, failure_timeout=2.0)


LAUNCHER = """
import os, sys, test_runs, slackwater
slackwater.launch(test_runs.says_who_it_is_and_waits, sys.argv[1], workers=2, servers=1, failure_timeout=1.0)
"""


def says_who_it_is_and_waits(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    if slackwater.rank() == 0:
        time.sleep(200)
    slackwater.barrier()


def test_workers_end_with_a_killed_launcher(tmp_path):
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], env=told, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 100
    while len(os.listdir(tmp_path)) < 2:
        assert time.monotonic() < limit
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    workers = [f"/proc/{worker}" for worker in os.listdir(tmp_path)]
    while any(os.path.exists(worker) for worker in workers):
        assert time.monotonic() < limit, "they go on"
        time.sleep(0.05)


def test_run_with_replicas_goes_on_without_a_killed_worker():
    begin = time.monotonic()
    results = slackwater.launch(dies, 1, workers=3, servers=2, replicas=2, failure_timeout=1.0)
    assert results[1] is None and results[0][0] >= 70 and results[2][0] >= 70, results
    assert time.monotonic() - begin < 100


def leases_some(kill):
    """Counts every example of every lease once. The worker of rank ``kill`` dies in the middle of
    its third lease."""
    counts = slackwater.Table("counts", rows=60, dtype="int64", updater="sum", slack=2)
    leases = slackwater.leases("data", ranges=20, epochs=2, shuffle=7)
    taken = 0
    for lease in leases:
        taken += 1
        for minibatch in range(3):
            counts.push(numpy.array([5]), keys=[3 * lease.range + minibatch], examples=5, lease=lease)
            if slackwater.rank() == kill and (taken, minibatch) == (3, 1):
                os.kill(os.getpid(), signal.SIGKILL)
        leases.commit(lease)
        slackwater.clock()
        # Slow enough that every worker gets leases.
        time.sleep(0.01)
    slackwater.barrier()
    return taken, counts.pull().tolist()


@pytest.mark.parametrize("kill", [None, 1])
def test_every_example_of_leased_data_counts_once_when_a_worker_is_killed(kill):
    results = slackwater.launch(leases_some, kill, workers=2, servers=2, replicas=2, failure_timeout=1.0)
    for rank, result in enumerate(results):
        if rank == kill:
            assert result is None
        else:
            taken, counts = result
            assert counts == [10] * 60 and taken > 0, (rank, result)
    if kill is None:
        assert results[0][0] + results[1][0] == 40


SCRIPT = """
import sys, numpy, slackwater
slackwater.init()
table = slackwater.Table("sums", rows=1, updater="sum", slack=0)
table.push(numpy.ones(1, "float32"))
slackwater.clock()
# A single write, so that the lines of two processes do not mix.
sys.stdout.write(f"rank {slackwater.rank()} of {slackwater.size()} has {table.pull()[0]}\\n")
"""


def lines(text):
    return sorted(line for line in text.splitlines() if line.startswith("rank"))


def test_run_starts_a_script_as_torchrun_does(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "slackwater.run", "--workers", "2", "--servers", "1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert lines(done.stdout) == ["rank 0 of 2 has 2.0", "rank 1 of 2 has 2.0"]
    script.write_text("raise SystemExit(3)")
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 3


def test_init_joins_a_run_by_torchruns_variables(tmp_path):
    port = int(_launch.free_address().rsplit(":")[-1])
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**os.environ, **told, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert lines("".join(said)) == ["rank 0 of 2 has 2.0", "rank 1 of 2 has 2.0"]


def test_init_joins_a_run_that_torchrun_started(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert lines(done.stdout) == ["rank 0 of 2 has 2.0", "rank 1 of 2 has 2.0"]


@pytest.mark.slow
def test_workers_of_several_hosts_serve_each_other_and_the_hosts_are_removed():
    from slackwater import _links

    if not _links.Hosts.are_possible():
        pytest.skip("emulated hosts need root, ip and tc")
    with _links.Hosts(2, "200mbit") as hosts:
        told = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
        workers = [
            hosts.start(rank, [sys.executable, "-c", SCRIPT], {**os.environ, **told, "RANK": str(rank)}) for rank in range(2)
        ]
        said = [worker.communicate(timeout=120)[0] for worker in workers]
        assert hosts.name in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert lines("".join(said)) == ["rank 0 of 2 has 2.0", "rank 1 of 2 has 2.0"]
    assert hosts.name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
