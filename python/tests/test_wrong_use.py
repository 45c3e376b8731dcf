"""Wrong use of the package raises clear exceptions."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import slackwater
from slackwater import _launch, _run, _slackwater


@pytest.fixture
def made(run):
    return slackwater.Table("made", rows=4, width=2, updater="sum", slack=0)


@pytest.mark.parametrize(
    "values, error, words",
    [
        (numpy.zeros((4, 2), "float64"), TypeError, "table 'made' holds float32, and the array float64"),
        (numpy.zeros((4, 2), "int16"), TypeError, "table 'made' holds float32, and the array int16"),
        (numpy.zeros((4, 2), "complex64"), TypeError, "rows of a table, which are float32, float64 or int64"),
        (numpy.zeros((4, 3), "float32"), ValueError, "4 rows of 2 of table 'made' are 8 numbers, and the array has 12"),
        (["one"] * 8, TypeError, "dtype"),
        ({1.0, 2.0}, TypeError, "expected an array or a tensor, not set"),
        (None, TypeError, "not NoneType"),
    ],
)
def test_push_refuses_values_that_do_not_fit(made, values, error, words):
    with pytest.raises(error, match=words):
        made.push(values)
    assert (made.pull() == 0).all()


def test_out_must_be_writable_and_fit(made):
    frozen = numpy.zeros((4, 2), "float32")
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        made.pull(out=frozen)
    with pytest.raises(ValueError, match="the array has 2"):
        made.pull(out=numpy.zeros(2, "float32"))


def test_keys_must_be_valid_integers(made):
    values = numpy.zeros((1, 2), "float32")
    for key in (-1, 2**64):
        for keys in ([key], (key,), key, range(key, key + 1)):
            with pytest.raises(ValueError, match=f"keys are 64-bit numbers, not negative; {key} is out of range"):
                made.push(values, keys=keys)
    for dtype in ("int8", "int16", "int32", "int64"):
        with pytest.raises(ValueError, match="not negative; -1 is out of range"):
            made.push(values, keys=numpy.array([-1], dtype))
    for keys in (numpy.array([1.5]), [1.5], numpy.array([True]), "a", {1}, iter([1]), 1.5):
        with pytest.raises(TypeError, match="keys are integers"):
            made.push(values, keys=keys)
        with pytest.raises(TypeError, match="keys are integers"):
            made.pull(keys)
    with pytest.raises(slackwater.TableError, match="made"):
        made.push(values, keys=[4])
    with pytest.raises(ValueError, match="any key; say which rows"):
        slackwater.Table("sparse", updater="sum").pull()


def test_table_refuses_wrong_settings(run):
    for settings, words in [
        ({"updater": "adamw"}, "no updater is called 'adamw'"),
        ({"updater": "sgd", "momentum": 0.9}, "has no setting 'momentum'"),
        ({"combine": "max"}, "none of 'each', 'sum' and 'mean'"),
        ({"dtype": "float16"}, "float32, float64 or int64, not float16"),
        ({"codecs": ["gzip9"]}, "gzip9"),
        ({"codecs": {"left": []}}, "not left"),
        ({"width": 0}, "width=0 will not do: width is a whole number from 1 on"),
        ({"rows": 0}, "rows=0 will not do: rows is a whole number from 1 on, or None for a table of any key"),
        ({"slack": -1}, "slack=-1 will not do: slack is a whole number from 0 on, or None for readers that never wait"),
        ({"width": 2**32}, "width=4294967296 will not do"),
        ({"initial": ("zero", 1, 1.0)}, "neither 'uniform' nor 'normal'"),
        ({"initial": ("normal", -1, 1.0)}, "the seed of initial=-1 will not do"),
    ]:
        with pytest.raises(ValueError, match=words):
            slackwater.Table("refused", **settings)
    for settings, words in [
        ({"slack": 1.5}, "slack=1.5 will not do: slack is a whole number"),
        ({"rows": 1.5}, "rows=1.5 will not do"),
        ({"cached_rows": "many"}, "cached_rows='many' will not do"),
        ({"rate": "a"}, "rate='a' will not do: a number is wanted"),
        ({"rate": None}, "rate=None will not do"),
        ({"updater": 3}, "updater=3 is not a string"),
        ({"codecs": 3}, "codecs=3 will not do"),
        ({"codecs": [3]}, "codecs are names"),
        ({"initial": "normal"}, "initial='normal' will not do"),
    ]:
        with pytest.raises(TypeError, match=words):
            slackwater.Table("refused", **settings)


def test_settings_are_numbers_of_any_type(run):
    table = slackwater.Table(
        "t", rows=numpy.int64(2), width=numpy.uint8(1), updater="sgd", slack=numpy.int32(0), rate=numpy.float32(0.5)
    )
    table.push(numpy.ones(2, "float32"))
    assert table.pull().tolist() == [-0.5, -0.5] and (table.rows, table.width) == (2, 1)


def test_error_without_numpy_says_what_to_do():
    code = """
import sys
sys.modules["numpy"] = None
import array, slackwater
slackwater.init()
table = slackwater.Table("t", rows=2, updater="sum", slack=0)
for call in (table.pull, table.pull_all, lambda: table.push([1.0, 2.0])):
    try:
        call()
    except ModuleNotFoundError as error:
        print(error)
out = array.array("f", [0, 0])
table.push(array.array("f", [1, 2]))
print(table.pull(out=out))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    *said, rows = done.stdout.splitlines()
    assert len(said) == 3 and all("pip install numpy" in line and "out=" in line for line in said), done
    assert rows == "array('f', [1.0, 2.0])"


def test_two_tables_of_one_name_must_be_the_same(made):
    again = slackwater.Table("made", rows=4, width=2, updater="sum", slack=0)
    again.push(numpy.ones((4, 2), "float32"))
    assert (made.pull() == 1).all()
    with pytest.raises(slackwater.TableError, match="made before with other settings: rows, slack"):
        slackwater.Table("made", rows=5, width=2, updater="sum", slack=1)


def test_refusal_of_nan_names_its_key(made):
    values = numpy.zeros((4, 2), "float32")
    values[2, 1] = numpy.nan
    with pytest.raises(slackwater.RefusedError, match="key 2 of table 'made' is not finite"):
        made.push(values)
    made.push_async(values)
    made.push(numpy.zeros((4, 2), "float32"))
    with pytest.raises(slackwater.RefusedError, match="key 2"):
        slackwater.clock()
    slackwater.clock()


def test_calls_after_shutdown_fail():
    slackwater.init()
    made = slackwater.Table("made", rows=1, updater="sum")
    slackwater.shutdown()
    slackwater.shutdown()
    with pytest.raises(slackwater.RunError, match="left the run"):
        made.push(numpy.zeros(1, "float32"))
    with pytest.raises(slackwater.RunError, match="call slackwater.init"):
        slackwater.clock()


def test_init_twice_returns_the_run_or_refuses_other_arguments(run):
    assert slackwater.init() is run
    with pytest.raises(slackwater.RunError, match="in a run already"):
        slackwater.init(servers=3)
    slackwater.shutdown()
    with slackwater.init(servers=3) as other:
        assert (other.servers, slackwater.rank(), slackwater.size()) == (3, 0, 1)


def test_forked_child_is_told_what_to_do(made):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            made.pull()
            os.write(writer, b"it worked")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    assert b"forked after slackwater.init()" in os.read(reader, 1000)
    os.waitpid(child, 0)
    os.close(reader)
    made.push(numpy.ones((4, 2), "float32"))


def test_missing_coordinator_is_reported_in_time():
    with pytest.raises(slackwater.RunError, match="no answer from the coordinator"):
        slackwater.init("127.0.0.1:1", join_limit=0.3)
    with pytest.raises(ConnectionError, match="write host:port"):
        slackwater.init("nowhere")
    with pytest.raises(ValueError, match="say rank=0 to 3"):
        slackwater.init("127.0.0.1:1", rank=4, size=4)


def blocked(call):
    """Interrupts ``call`` by Ctrl-C while it waits. Checks that it raises KeyboardInterrupt, and
    returns the seconds that it took."""
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()
    return time.monotonic() - begin


def test_ctrl_c_ends_every_wait_and_the_run_goes_on():
    first, second = _slackwater.Session.embedded(1, 2)
    spec = dict(
        name="t", dtype="float32", rows=2, width=1, updater="sum", settings={}, slack=0, eager=False, combine="each",
        up=[], down=[], initial=None, cached_rows=None, ordered=False,
    )  # fmt: skip
    table = first.table(spec)
    out = numpy.zeros(2, "float32")
    first.clock()
    # Ten times what each takes.
    assert blocked(lambda: table.pull(out, None).wait()) < 5
    assert blocked(first.barrier) < 5
    assert blocked(lambda: _slackwater.Session.connect("127.0.0.1:1", None, 60.0, 2.0, True)) < 15
    second.clock()
    table.pull(out, None).wait()
    first.close()
    second.close()


def test_ctrl_c_ends_a_servers_wait_and_frees_its_address():
    coordinator = _slackwater.free_address()
    # No worker joins it.
    server = _slackwater.Server(coordinator, 1, (1, 1), None, 100.0, 2.0, True)
    assert blocked(server.wait) < 5
    begin = time.monotonic()
    server.end()
    assert time.monotonic() - begin < 4.5
    with slackwater.init(coordinator, rank=0, size=1):
        pass
    assert blocked(lambda: slackwater.init(coordinator, rank=0, size=2)) < 15
    with slackwater.init(coordinator, rank=0, size=1):
        pass


def test_server_process_ends_by_ctrl_c():
    code = """
from slackwater import _slackwater
server = _slackwater.Server(_slackwater.free_address(), 1, (1, 1), None, 100.0, 2.0, True)
print("serves", flush=True)
server.wait()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "serves\n"
    # Time for it to begin its wait.
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("status, failed", [(None, False), (0, False), (3, True), ("no data", True)])
def test_exit_status_tells_whether_a_worker_has_failed(status, failed):
    first, second = _slackwater.Session.embedded(1, 2)
    with pytest.raises(SystemExit):
        with _run.Run(first, None, None, ()):
            sys.exit(status)
    if failed:
        with pytest.raises(slackwater.RunError, match=f"lost worker 0: it could not go on: SystemExit: {status}"):
            second.barrier()
        second.abandon("it was told")
    else:
        second.barrier()
        second.close()


def test_waiting_releases_the_interpreter_lock():
    first, second = _slackwater.Session.embedded(1, 2)
    waiting = threading.Thread(target=first.barrier)
    waiting.start()
    count = sum(1 for _ in range(100_000))
    second.barrier()
    waiting.join(60)
    assert count == 100_000 and not waiting.is_alive()
    first.close()
    second.close()


def test_lost_server_is_reported():
    code = """
import os, numpy, slackwater
from slackwater import _launch
coordinator = _launch.free_address()
servers = _launch.Servers(coordinator, 1, 1, None, 1.0, True)
slackwater.init(coordinator, failure_timeout=1.0)
table = slackwater.Table("t", rows=2, updater="sum")
table.push(numpy.ones(2, "float32"))
servers.processes[0].kill()
try:
    while True:
        table.push(numpy.ones(2, "float32"))
except slackwater.RunError as error:
    print("said:", error)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "said: lost" in done.stdout, done


@pytest.mark.parametrize("shuts_down", [False, True])
def test_init_begins_another_run_after_a_loss(shuts_down):
    coordinator = _launch.free_address()
    servers = _launch.Servers(coordinator, 1, 1, None, 1.0, True)
    lost = slackwater.init(coordinator, failure_timeout=1.0)
    assert slackwater.is_initialized()
    table = slackwater.Table("t", rows=1, updater="sum")
    servers.processes[0].kill()
    with pytest.raises(slackwater.RunError, match="lost"):
        while True:
            table.push([1])
    assert not slackwater.is_initialized()
    if shuts_down:
        # The loss was raised before, and is not raised again.
        slackwater.shutdown()
    run = slackwater.init()
    assert run is not lost and slackwater.is_initialized()
    lost.shutdown()
    slackwater.Table("t", rows=1, updater="sum").push([1])
    slackwater.shutdown()


def test_shutdown_raises_a_loss_that_no_call_has_raised():
    coordinator = _launch.free_address()
    servers = _launch.Servers(coordinator, 1, 1, None, 1.0, True)
    run = slackwater.init(coordinator, failure_timeout=1.0)
    table = slackwater.Table("t", rows=1, updater="sum")
    servers.processes[0].kill()
    table.push_async([1])
    limit = time.monotonic() + 20
    while slackwater.is_initialized():
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert run._session.is_held and not run._session.failure_was_reported
    with pytest.raises(slackwater.RunError, match="lost"):
        slackwater.shutdown()
    run.shutdown()


def test_coordinator_address_is_free_for_another_run_after_a_loss():
    coordinator = _launch.free_address()
    code = f"import slackwater, os; slackwater.init('{coordinator}', rank=1, size=2, failure_timeout=1.0); os.kill(os.getpid(), 9)"
    other = subprocess.Popen([sys.executable, "-c", code])
    slackwater.init(coordinator, rank=0, size=2, failure_timeout=1.0)
    other.wait()
    with pytest.raises(slackwater.RunError, match="lost"):
        while True:
            slackwater.barrier()
    slackwater.init(coordinator, rank=0, size=1)
    assert slackwater.size() == 1
    slackwater.Table("t", rows=1, updater="sum").push([1])
    slackwater.shutdown()


def test_import_loads_neither_numpy_nor_torch():
    code = "import sys, slackwater; print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done


def test_leases_refuse_wrong_order_and_other_inputs(run):
    table = slackwater.Table("t", rows=1, updater="sum", slack=0)
    leases = slackwater.leases("data", ranges=2, input=("a.csv", 1))
    with pytest.raises(slackwater.TableError, match="a.csv"):
        slackwater.leases("data", ranges=2, input=("b.csv", 2))
    with pytest.raises(ValueError, match="a range"):
        slackwater.leases("none", ranges=0)
    lease = next(leases)
    assert (lease.number, lease.epoch, lease.range, leases.share) == (0, 0, 0, 1)
    with pytest.raises(slackwater.TableError, match="lease 0 is not committed"):
        next(leases)
    leases.commit(lease)
    for late in (lambda: leases.commit(lease), lambda: table.push(numpy.ones(1, "float32"), lease=lease)):
        with pytest.raises(slackwater.TableError, match="lease 0 is committed"):
            late()
    leases.end()
    assert list(leases) == []
