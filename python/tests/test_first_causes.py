"""A run that ends says which node failed first, and why: the last line of the launcher, and the
error of every worker that survives it."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy
import pytest

import slackwater
from slackwater import _launch

# A command that takes longer hangs. None takes a tenth of it.
LONG_SECONDS = 200
# A failure timeout that no test waits for.
NEVER = "600"
# Longer than the clock timeout of the test that sets one.
SLEEP_SECONDS = 4

SCRIPT = """
import os, pathlib, signal, sys
import slackwater, test_first_causes
folder, how, work = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
try:
    if how.endswith("in a block"):
        with slackwater.init():
            getattr(test_first_causes, work)(how)
    else:
        slackwater.init()
        getattr(test_first_causes, work)(how)
except slackwater.RunError as error:
    text = f"{error.node}|{error.reason}|{error}"
    (folder / f"error {os.environ['RANK']}").write_text(text)
    raise
"""


def kill_servers(kind):
    """Kills the launcher's coordinator, or all of its servers."""
    for name in filter(str.isdecimal, sorted(os.listdir("/proc"), key=lambda name: (len(name), name))):
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as line:
                parent, command = int(stat.read().rpartition(")")[2].split()[1]), line.read().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        is_coordinator = "--coordinate" in command
        if parent == os.getppid() and "slackwater._serve" in command and is_coordinator == (kind == "coordinator"):
            os.kill(int(name), signal.SIGKILL)


def fail(how):
    """Fails in the given way."""
    if how.startswith("raises"):
        raise ValueError("boom")
    if how.startswith("exits"):
        sys.exit(3)
    if how == "sleeps":
        time.sleep(SLEEP_SECONDS)
        return
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    kill_servers(how)


def count(how):
    """Works on a table until the run ends. Worker 1 fails."""
    table = slackwater.Table("t", rows=4, updater="sum", slack=0)
    step = 0
    while True:
        step += 1
        if slackwater.rank() == 1 and step == 10:
            fail(how)
        table.push(numpy.ones(4, "float32"))
        slackwater.clock()
        table.pull()


def train(how, slack=0):
    """Trains until the run ends. Worker 1 fails."""
    import torch
    from slackwater.torch import DistributedOptimizer

    model = torch.nn.Linear(8, 8)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model, slack=slack)
    step = 0
    while True:
        step += 1
        optimizer.zero_grad()
        if slackwater.rank() == 1 and step == 10:
            fail(how)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def train_with_slack(how):
    train(how, slack=2)


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}


def run(folder, *words, workers=3, failure_timeout=NEVER, options=()):
    """Runs the script by ``slackwater.run``. Returns its exit status, its last line, and the error
    of each worker that raised RunError, by rank: the node, the reason and the text."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "slackwater.run", "--workers", str(workers), "--servers", "2"]
    command += ["--failure-timeout", failure_timeout, *options, str(script), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_SECONDS, env=environment())
    errors = {int(path.name.split()[1]): path.read_text().split("|") for path in folder.glob("error *")}
    print(done.stderr)
    return done.returncode, done.stderr.splitlines()[-1], errors


BOOM = "it could not go on: ValueError: boom"
EXIT = "it could not go on: SystemExit: 3"
ENDED = "its process has ended"


@pytest.mark.parametrize(
    "how, status, words, reason",
    [
        ("raises", 1, f"ended with status 1: {BOOM}", BOOM),
        ("raises in a block", 1, f"ended with status 1: {BOOM}", BOOM),
        ("exits in a block", 3, f"ended with status 3: {EXIT}", EXIT),
        ("is killed", 137, "was killed by signal 9", ENDED),
    ],
)
def test_run_and_survivors_name_the_worker_that_failed_first(how, status, words, reason, tmp_path):
    returned, last, errors = run(tmp_path, how, "count")
    assert re.fullmatch(rf"slackwater: the run failed: worker 1 \(process \d+\) {words}", last)
    assert returned == status
    assert sorted(errors) == [0, 2]
    for node, told, text in errors.values():
        assert (node, told) == ("worker 1", reason) and text.startswith(f"lost worker 1: {reason}")


def test_run_names_a_worker_that_exits_when_the_others_go_on(tmp_path):
    # Python does not tell exit handlers the status, so worker 1 leaves as if it had finished.
    returned, last, errors = run(tmp_path, "exits", "count", failure_timeout="1")
    assert re.fullmatch(r"slackwater: the run failed: worker 1 \(process \d+\) ended with status 3", last)
    assert (returned, errors) == (3, {})


@pytest.mark.parametrize("work", ["train", "train_with_slack"])
@pytest.mark.parametrize("how, words, reason", [("raises", f"ended with status 1: {BOOM}", BOOM), ("is killed", "was killed by signal 9", ENDED)])
def test_run_and_survivors_of_a_training_name_the_worker_that_failed_first(work, how, words, reason, tmp_path):
    pytest.importorskip("torch")
    _, last, errors = run(tmp_path, how, work, workers=2)
    assert re.fullmatch(rf"slackwater: the run failed: worker 1 \(process \d+\) {words}", last)
    assert [error[:2] for error in errors.values()] == [["worker 1", reason]]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("replicas", [None, 2])
def test_run_and_survivors_name_the_coordinator_that_was_killed(replicas, tmp_path):
    options = [] if replicas is None else ["--replicas", str(replicas)]
    returned, last, errors = run(tmp_path, "coordinator", "count", options=options)
    name = "the process of servers and coordinator" if replicas is None else "the coordinator"
    assert re.fullmatch(rf"slackwater: the run failed: {name} \(process \d+\) was killed by signal 9", last)
    assert returned == 1
    assert [errors[rank][:2] for rank in range(3)] == [["coordinator", ENDED]] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_run_and_survivors_name_the_first_of_two_servers_that_were_killed(tmp_path):
    returned, last, errors = run(tmp_path, "servers", "count", options=["--replicas", "2"])
    found = re.fullmatch(r"slackwater: the run failed: lost (server \d): (its process has ended; before others held its shards, .* was lost, too: .*)", last)
    assert found and returned == 1, last
    assert [errors[rank][:2] for rank in range(3)] == [list(found.groups())] * 3


def test_run_names_a_script_that_fails_before_it_joins(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import nothing_of_that_name")
    command = [sys.executable, "-m", "slackwater.run", "--workers", "2", "--servers", "1", "--failure-timeout", NEVER, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_SECONDS)
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"slackwater: the run failed: worker \d \(process \d+\) ended with status 1", last), done


def raises_another_error(how):
    """As :func:`count`, but survivors raise an error of their own."""
    try:
        count(how)
    except slackwater.RunError as error:
        raise KeyError("the training failed") from error


@pytest.mark.parametrize("work", [count, raises_another_error])
@pytest.mark.parametrize("how, words", [("raises", "ValueError: boom"), ("is killed", "its process was killed by signal 9")])
def test_launch_raises_the_first_failure(work, how, words):
    with pytest.raises(slackwater.RunError) as raised:
        slackwater.launch(work, how, workers=3, servers=2, failure_timeout=float(NEVER))
    assert str(raised.value).startswith(f"worker 1 failed: {words}")
    assert (raised.value.node, raised.value.reason) == ("worker 1", BOOM if how == "raises" else ENDED)


def test_launch_raises_that_a_worker_was_in_one_clock_for_longer_than_the_clock_timeout():
    with pytest.raises(slackwater.RunError) as raised:
        slackwater.launch(count, "sleeps", workers=2, servers=1, failure_timeout=float(NEVER), clock_timeout=1.0)
    assert raised.value.node == "worker 1"
    assert re.match(r"it was in clock \d+ for .* without waiting for others", raised.value.reason), raised.value


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_launch_raises_that_the_servers_were_killed():
    with pytest.raises(slackwater.RunError, match=r"^the process of servers and coordinator \(process \d+\) was killed by signal 9$"):
        slackwater.launch(count, "coordinator", workers=2, servers=2, failure_timeout=float(NEVER))


@pytest.mark.parametrize("failing", [0, 1])
def test_workers_that_serve_themselves_name_the_worker_that_failed(failing, tmp_path):
    port = int(_launch.free_address().rsplit(":")[-1])
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", "SLACKWATER_FAILURE_TIMEOUT": NEVER}
    script = tmp_path / "script.py"
    # Worker 0, which runs the coordinator, fails if the ranks are turned round.
    script.write_text(SCRIPT.replace("import slackwater, test_first_causes", f"import slackwater, test_first_causes\nrank = slackwater.rank\nslackwater.rank = lambda: (rank() + 1 - {failing}) % 3"))
    processes = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path), "raises", "count"], env={**environment(), **told, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    said = [process.communicate(timeout=LONG_SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1, 1]
    assert said[failing].splitlines()[-1] == "ValueError: boom", said
    errors = {int(path.name.split()[1]): path.read_text().split("|") for path in tmp_path.glob("error *")}
    assert sorted(errors) == [rank for rank in range(3) if rank != failing]
    assert [error[:2] for error in errors.values()] == [[f"worker {failing}", BOOM]] * 2
