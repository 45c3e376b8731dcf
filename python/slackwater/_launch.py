"""Launchers of runs on this host, whose workers each call a function or run a script. They start
servers and workers as processes, and end them together."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import sys
import time
import traceback
from multiprocessing import connection, get_context, parent_process
from typing import Any, Callable, NamedTuple, Optional

from . import _lifetime, _run, _slackwater
from ._slackwater import Process, RunToken, free_address

# How long processes may take to end by themselves after one has failed, in seconds, beyond the
# failure timeout.
GRACE_SECONDS = 5.0
# The environment variable that names the token file of a run.
TOKEN_FILE = "SLACKWATER_TOKEN_FILE"
# The kind of a failure whose worker said nothing.
LOST = "Lost"
# How long the coordinator may take to say which node failed, before it is told to leave.
LEAVE_SECONDS = 1.0


class Servers:
    """The processes of the servers and the coordinator. Without ``replicas``, one process runs all
    of them; otherwise each is a process of its own, the coordinator first."""

    def __init__(
        self, coordinator: str, servers: int, workers: int, replicas: Optional[int], failure_timeout: float, shared_memory: bool,
        clock_timeout: Optional[float] = None, environment: Optional[dict[str, str]] = None,
    ):
        # The coordinator writes into this pipe which node was lost first, if the run ends by that.
        self._verdict, self._verdict_end = os.pipe()
        self._failure: Optional[Failure] = None

        def start(name: str, threads: int, coordinate: bool) -> Process:
            command = [sys.executable, "-m", "slackwater._serve", "--launcher", str(os.getpid())]
            command += ["--coordinator", coordinator, "--threads", str(threads)]
            command += ["--failure-timeout", str(failure_timeout)] + ([] if shared_memory else ["--tcp"])
            if coordinate:
                command += ["--coordinate", str(servers), str(workers), "--verdict", str(self._verdict_end)]
                command += [] if replicas is None else ["--replicas", str(replicas)]
                command += [] if clock_timeout is None else ["--clock-timeout", str(clock_timeout)]
                os.set_inheritable(self._verdict_end, True)
            try:
                # A terminal's Ctrl-C does not reach the servers: they end after the workers have
                # stopped.
                return Process(name, command, environment or {})
            finally:
                os.set_inheritable(self._verdict_end, False)

        try:
            if replicas is None:
                self.name = "the process of servers and coordinator"
                self.processes = [start("server", servers, True)]
            else:
                self.name = "the coordinator"
                self.processes = [start("coordinator", 0, True)] + [start("server", 1, False) for _ in range(servers)]
        finally:
            os.close(self._verdict_end)

    def failure(self, seconds: float) -> Optional["Failure"]:
        """Which node failed first, as the coordinator says within ``seconds``; the coordinator
        itself if it was killed. None if it says nothing."""
        if self._failure is None and select.select([self._verdict], [], [], seconds)[0]:
            told = os.read(self._verdict, select.PIPE_BUF)
            if told:
                self._failure = Failure(**json.loads(told))
            else:
                # The process has closed the pipe, so it ends.
                self.processes[0].end(GRACE_SECONDS)
        status = self.processes[0].poll()
        if self._failure is None and status is not None and status < 0:
            self._failure = Failure("coordinator", f"{self.name} (process {self.processes[0].pid}) {in_words(status)}")
        return self._failure

    def failure_of_ended_run(self) -> Optional["Failure"]:
        """As :meth:`failure`, when all workers have ended. If the run has not begun, its
        coordinator would wait for more workers, so it is told to leave."""
        failure = self.failure(LEAVE_SECONDS)
        if failure is None:
            self.processes[0].signal(signal.SIGTERM)
            failure = self.failure(GRACE_SECONDS)
        return failure

    def end(self, seconds: float) -> None:
        """Waits ``seconds`` for the processes to end, and then kills those that still run."""
        limit = time.monotonic() + seconds
        for process in self.processes:
            process.end(max(0.0, limit - time.monotonic()))

    def __del__(self) -> None:
        os.close(self._verdict)


class Failure(NamedTuple):
    """The first node that failed, and how."""

    node: str
    reason: str

    def place(self) -> Optional[int]:
        """The place of the worker that failed; None if it was no worker."""
        kind, _, number = self.node.partition(" ")
        return int(number) if kind == "worker" else None

    def in_words(self) -> str:
        """Which node failed, and how."""
        return self.reason if self.node == "coordinator" else f"lost {self.node}: {self.reason}"


def in_words(status: int) -> str:
    """How a process ended, from its exit status, or minus the signal that killed it."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def run_token() -> tuple[Optional[RunToken], dict[str, str]]:
    """The token by which the processes of a run prove who they are, and the variables that tell
    them. None if the environment of this process names a token file already."""
    if os.environ.get(TOKEN_FILE):
        return None, {}
    token = RunToken()
    return token, {TOKEN_FILE: os.fspath(token.path)}


def worker_environment(coordinator: str, place: int, workers: int) -> dict[str, str]:
    """The environment variables of a worker's process: the coordinator's address, and those that
    torchrun sets."""
    host, port = coordinator.rsplit(":", 1)
    told = {
        "SLACKWATER_COORDINATOR": coordinator,
        "SLACKWATER_PLACE": str(place),
        "RANK": str(place),
        "LOCAL_RANK": str(place),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(int(port) - _run.PORTS_AFTER_MASTER),
    }
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        # As torchrun does: processes that each use every core would compete for the cores.
        told["OMP_NUM_THREADS"] = "1"
    return told


def _work(pipe: connection.Connection, environment: dict[str, str], options: dict[str, Any], work: bytes | tuple) -> None:
    """Runs in a worker's process: joins the run, calls the function, and sends back its result or
    error."""
    is_forked = not isinstance(work, bytes)
    if is_forked and "torch" in sys.modules:
        # The launcher's PyTorch threads do not exist in a forked process, and PyTorch would wait
        # for them.
        sys.modules["torch"].set_num_threads(1)
    launcher = parent_process()
    if launcher is not None:
        _lifetime.end_with(launcher.pid)
    os.environ.update(environment)
    try:
        fn, arguments = work if is_forked else pickle.loads(work)
        with _run.init(**options):
            result = fn(*arguments)
        pipe.send((True, result))
    except BaseException as error:
        pipe.send((False, (type(error).__name__, str(error), traceback.format_exc())))
        raise SystemExit(1) from error


def launch(
    fn: Callable[..., Any],
    *arguments: Any,
    workers: int = 4,
    servers: int = 2,
    replicas: Optional[int] = None,
    failure_timeout: float = 10.0,
    shared_memory: bool = True,
    clock_timeout: Optional[float] = None,
) -> list[Any]:
    """Implements :func:`slackwater.launch`; see there."""
    if _run.is_initialized():
        raise _slackwater.RunError("this process is in a run already; call slackwater.shutdown() before launch()")
    if workers < 1 or servers < 1:
        raise ValueError(f"a run needs at least one server and one worker, not {servers} servers and {workers} workers")
    work: Any = (fn, arguments)
    try:
        # A function that a fresh process can import by name can be pickled.
        sendable = getattr(fn, "__module__", "__main__") != "__main__"
        way, work = ("spawn", pickle.dumps(work)) if sendable else ("fork", work)
    except (pickle.PicklingError, AttributeError, TypeError):
        way = "fork"
    context = get_context(way)
    coordinator = free_address()
    # Its file is removed when this function has returned.
    token, access = run_token()
    serving = Servers(coordinator, servers, workers, replicas, failure_timeout, shared_memory, clock_timeout, access)
    children, results = [], [None] * workers
    failures: dict[int, tuple[str, str, str]] = {}
    first: Optional[Failure] = None
    try:
        options = dict(failure_timeout=failure_timeout, shared_memory=shared_memory)
        waiting = {}
        for place in range(workers):
            here, there = context.Pipe(duplex=False)
            environment = {**worker_environment(coordinator, place, workers), **access}
            child = context.Process(target=_work, args=(there, environment, options, work), name=f"worker {place}")
            child.start()
            there.close()
            children.append(child)
            waiting[here] = place
        limit: Optional[float] = None
        while waiting and (limit is None or time.monotonic() < limit):
            for pipe in connection.wait(list(waiting), timeout=1.0):
                place = waiting.pop(pipe)
                try:
                    well, result = pipe.recv()
                except EOFError:
                    children[place].join(GRACE_SECONDS)
                    status = children[place].exitcode
                    result = (LOST, "its process has not ended" if status is None else f"its process {in_words(status)}", "")
                    well = False
                if well:
                    results[place] = result
                else:
                    failures[place] = result
            if failures and replicas is None and limit is None:
                # The other workers notice the loss by themselves and fail too, perhaps before this
                # process reads of it.
                limit = time.monotonic() + failure_timeout + GRACE_SECONDS
        if failures and limit is None:
            limit = time.monotonic() + failure_timeout + GRACE_SECONDS
        for child in children:
            child.join(None if limit is None else max(0.0, limit - time.monotonic()))
        if failures and (replicas is None or len(failures) == workers):
            # Workers that still run are killed below, and the coordinator would blame them.
            is_over = not any(child.is_alive() for child in children)
            first = serving.failure_of_ended_run() if is_over else serving.failure(0.0)
            if not is_over:
                serving.end(0.0)
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
        serving.end(GRACE_SECONDS + failure_timeout)
    if failures and (replicas is None or len(failures) == workers):
        error = _slackwater.RunError(_in_words(failures, first))
        if first is not None:
            error.node, error.reason = first
        raise error
    return results


def _in_words(failures: dict[int, tuple[str, str, str]], first: Optional[Failure]) -> str:
    """The failure of a run: its cause, not a failure that it caused in another worker."""
    if first is not None and first.place() not in failures:
        return first.in_words()
    if first is not None:
        place = first.place()
    else:
        # Of the failures in order: a process that was killed, or an error that is not of the run.
        ranks = {LOST: 0, _slackwater.RunError.__name__: 2}
        place = min(failures, key=lambda place: ranks.get(failures[place][0], 1))
    kind, text, trace = failures[place]
    what = text if kind == LOST else f"{kind}: {text}"
    return f"worker {place} failed: {what}\n{trace}".rstrip()


def run_script(
    command: list[str],
    workers: int,
    servers: int,
    replicas: Optional[int],
    failure_timeout: float,
    shared_memory: bool,
    clock_timeout: Optional[float] = None,
) -> int:
    """Runs a command as each worker of a run. Returns an exit status for the shell: 0, or that of
    the first worker that failed."""
    coordinator = free_address()
    # Its file is removed when this function has returned.
    token, access = run_token()
    serving = Servers(coordinator, servers, workers, replicas, failure_timeout, shared_memory, clock_timeout, access)
    children: list[Process] = []
    passed_on = 0
    # The status of each worker that failed, in the order in which this process noticed it.
    failed: dict[int, int] = {}
    first: Optional[Failure] = None
    told: list[int] = []
    earlier = {name: signal.signal(name, lambda number, _: told.append(number)) for name in (signal.SIGINT, signal.SIGTERM)}

    def has_failed() -> bool:
        return bool(failed) and (replicas is None or len(failed) == workers)

    well = False
    try:
        for place in range(workers):
            environment = {**worker_environment(coordinator, place, workers), **access}
            environment["SLACKWATER_FAILURE_TIMEOUT"] = str(failure_timeout)
            # A terminal's Ctrl-C reaches only this process, which passes it on once, as torchrun
            # does.
            children.append(Process(f"worker {place}", command, environment, stdin=True))
        deadline: Optional[float] = None
        is_running = True
        while is_running:
            time.sleep(0.05)
            for number in told[passed_on:]:
                passed_on += 1
                for child in children:
                    child.signal(number)
            statuses = [child.poll() for child in children]
            is_running = None in statuses
            for place, status in enumerate(statuses):
                if status and place not in failed:
                    failed[place] = status
                    print(f"slackwater: worker {place} (process {children[place].pid}) {in_words(status)}", file=sys.stderr)
            if has_failed() and deadline is None:
                deadline = time.monotonic() + failure_timeout + GRACE_SECONDS
            if is_running and deadline is not None and time.monotonic() > deadline:
                print("slackwater: the other workers have not ended in time, and are killed", file=sys.stderr)
                first = serving.failure(0.0)
                # Otherwise the coordinator would blame a worker that is killed here.
                serving.end(0.0)
                break
        if has_failed() and not is_running:
            first = serving.failure_of_ended_run()
        well = not has_failed()
    finally:
        for child in children:
            child.kill()
        # After a failure the servers may wait for workers that never join, so give them less time.
        serving.end(GRACE_SECONDS + failure_timeout if well else LEAVE_SECONDS)
        for name, handler in earlier.items():
            signal.signal(name, handler)
    if well:
        return 0
    # Of the failures in order: a process that was killed.
    place = min(failed, key=lambda place: failed[place] >= 0)
    if first is not None and first.place() in failed:
        place = first.place()
    cause = f"worker {place} (process {children[place].pid}) {in_words(failed[place])}"
    if first is not None and first.place() != place:
        cause = first.in_words()
    elif first is not None and failed[place] > 0:
        cause = f"{cause}: {first.reason}"
    print(f"slackwater: the run failed: {cause}", file=sys.stderr)
    status = failed[place]
    return status if status >= 0 else 128 - status
