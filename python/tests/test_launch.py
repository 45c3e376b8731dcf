"""Launchers: they refuse wrong arguments, pass on Ctrl-C, and no process outlives them."""

import os
import pty
import subprocess
import sys
import time

import pytest

import slackwater

RUN = [sys.executable, "-m", "slackwater.run"]
# A command that takes longer hangs. None takes a tenth of it.
LONG_SECONDS = 60


def until(happens, seconds=LONG_SECONDS):
    """Waits until ``happens()`` is true; fails after ``seconds``."""
    limit = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (["--servers", "0"], "--servers: a run needs at least one, not 0"),
        (["--workers", "0"], "a run needs at least one, not 0"),
        (["--workers", "-1"], "a run needs at least one, not -1"),
        (["--replicas", "0"], "--replicas: a run needs at least one, not 0"),
        (["--failure-timeout", "0"], "cannot wait 0 s"),
        (["--nnodes", "2"], "torchrun --nnodes 2"),
    ],
)
def test_run_refuses_wrong_arguments(wrong, words, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('it ran')")
    done = subprocess.run([*RUN, *wrong, str(script)], capture_output=True, text=True, timeout=LONG_SECONDS)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done
    assert done.stdout == ""


def test_run_accepts_torchruns_arguments_for_one_host(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, slackwater\nslackwater.init()\nsys.stdout.write(f'{slackwater.size()}\\n')")
    words = ["--standalone", "--nnodes", "1", "--nproc-per-node", "2", "--servers", "1"]
    done = subprocess.run([*RUN, *words, str(script)], capture_output=True, text=True, timeout=LONG_SECONDS)
    assert (done.returncode, done.stdout) == (0, "2\n2\n"), done


COUNTS = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
(folder / f"ready {rank}").touch()
limit = time.monotonic() + 60
while count == 0 and time.monotonic() < limit:
    time.sleep(0.01)
# Wait for a second one, which must not come.
time.sleep(0.5)
(folder / f"count {rank}").write_text(str(count))
sys.exit(3)
"""


def test_ctrl_c_of_a_terminal_reaches_each_worker_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(COUNTS)
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [*RUN, "--workers", "2", "--servers", "1", "--failure-timeout", "1", str(script), str(tmp_path)])
    until(lambda: len(list(tmp_path.glob("ready *"))) == 2)
    os.write(terminal, b"\x03")
    until(lambda: len(list(tmp_path.glob("count *"))) == 2)
    assert [(tmp_path / f"count {rank}").read_text() for rank in range(2)] == ["1", "1"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os.close(terminal)


def fields(process):
    """The state and the parent of a process, from /proc; None if it has ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else (state, int(parent))


def children(parent):
    processes = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [process for process in processes if (fields(process) or (None, None))[1] == parent]


def says_that_it_is_there(folder):
    open(os.path.join(folder, f"there {os.getpid()}"), "w").close()
    time.sleep(200)


class ComesLate:
    """A function that workers unpickle before they join. Unpickling takes long, so the servers wait
    for the workers."""

    def __init__(self, folder):
        self.folder = folder

    def __setstate__(self, state):
        says_that_it_is_there(state["folder"])

    def __call__(self):
        raise AssertionError("no worker gets here")


LAUNCHES = """
import sys, slackwater, test_launch
if __name__ == "__main__":
    slackwater.launch(test_launch.ComesLate(sys.argv[1]), workers=2, servers=2, replicas=2, failure_timeout=60.0)
"""
IS_RUN = "import sys, slackwater, test_launch\nslackwater.init()\ntest_launch.says_that_it_is_there(sys.argv[1])"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("way", ["run", "launch"])
def test_servers_and_workers_end_with_a_killed_launcher(way, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IS_RUN if way == "run" else LAUNCHES)
    command = [*RUN, "--workers", "2", "--servers", "2", "--replicas", "2", "--failure-timeout", "60"] if way == "run" else [sys.executable]
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen([*command, str(script), str(tmp_path)], env=told, stderr=subprocess.DEVNULL)
    until(lambda: len(list(tmp_path.glob("there *"))) == 2)
    started = children(launcher.pid)
    # A coordinator, two servers and two workers, and perhaps helper processes of multiprocessing.
    assert len(started) >= 5, started
    launcher.kill()
    launcher.wait()
    # Long before the failure timeout.
    until(lambda: not any(map(fields, started)), 10)


FORKS = """
import torch, slackwater

def compute():
    return float((torch.arange(2_000_000, dtype=torch.float32) % 2).sum())

if __name__ == "__main__":
    torch.set_num_threads(4)
    expected = compute()
    assert slackwater.launch(compute, workers=2, servers=1) == [expected, expected]
    print("it is the same")
"""


def test_launch_forks_a_program_that_has_computed_with_torch_threads(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(FORKS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LONG_SECONDS)
    assert done.stdout == "it is the same\n", done


def test_launch_and_run_make_a_token_for_their_run_and_remove_it(tmp_path, monkeypatch):
    monkeypatch.delenv("SLACKWATER_TOKEN_FILE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told = slackwater.launch(_token_file, workers=2, servers=1)
    assert told[0] == told[1] and told[0].startswith(str(tmp_path)), told
    script = tmp_path / "script.py"
    script.write_text(
        "import os, stat, slackwater\n"
        "with slackwater.init():\n"
        "    mode = os.stat(os.environ['SLACKWATER_TOKEN_FILE']).st_mode\n"
        "    print(oct(stat.S_IMODE(mode)))\n"
    )
    command = [sys.executable, "-m", "slackwater.run", "--workers", "1", "--servers", "1", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout.strip()) == (0, "0o600"), ran.stderr
    assert "has no token" not in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def _token_file():
    return os.environ["SLACKWATER_TOKEN_FILE"]
