"""Launchers of runs on this host, whose workers each call a function or run a script. They start
servers and workers as processes, and end them together."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
from multiprocessing import connection, get_context, parent_process
from typing import Any, Callable, Optional

from . import _lifetime, _run, _slackwater
from ._slackwater import Process, free_address

# How long processes may take to end by themselves after one has failed, in seconds, beyond the
# failure timeout.
GRACE_SECONDS = 5.0


def start_servers(
    coordinator: str, servers: int, workers: int, replicas: Optional[int], failure_timeout: float, shared_memory: bool
) -> list[Process]:
    """Starts the servers: one process for all of them or, with ``replicas``, one process for each
    server and one for the coordinator. Returns the processes."""

    def start(threads: int, coordinate: bool) -> Process:
        command = [sys.executable, "-m", "slackwater._serve", "--launcher", str(os.getpid())]
        command += ["--coordinator", coordinator, "--threads", str(threads)]
        command += ["--failure-timeout", str(failure_timeout)] + ([] if shared_memory else ["--tcp"])
        if coordinate:
            command += ["--coordinate", str(servers), str(workers)]
            command += [] if replicas is None else ["--replicas", str(replicas)]
        # A terminal's Ctrl-C does not reach the servers: they end after the workers have stopped.
        return Process("server", command, {})

    if replicas is None:
        return [start(servers, True)]
    return [start(0, True)] + [start(1, False) for _ in range(servers)]


def end(processes: list[Process], seconds: float) -> None:
    """Waits ``seconds`` for the processes to end, and then kills those that still run."""
    limit = time.monotonic() + seconds
    for process in processes:
        process.end(max(0.0, limit - time.monotonic()))


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
    serving = start_servers(coordinator, servers, workers, replicas, failure_timeout, shared_memory)
    children, results = [], [None] * workers
    failures: list[tuple[int, tuple[str, str, str]]] = []
    try:
        options = dict(failure_timeout=failure_timeout, shared_memory=shared_memory)
        waiting = {}
        for place in range(workers):
            here, there = context.Pipe(duplex=False)
            environment = worker_environment(coordinator, place, workers)
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
                    result = ("Lost", f"its process ended with status {children[place].exitcode}", "")
                    well = False
                if well:
                    results[place] = result
                else:
                    failures.append((place, result))
            if failures and replicas is None and limit is None:
                # The other workers notice the loss by themselves and fail too, perhaps before this
                # process reads of it.
                limit = time.monotonic() + failure_timeout + GRACE_SECONDS
        if failures and limit is None:
            limit = time.monotonic() + failure_timeout + GRACE_SECONDS
        for child in children:
            child.join(None if limit is None else max(0.0, limit - time.monotonic()))
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
        end(serving, GRACE_SECONDS + failure_timeout)
    if failures and (replicas is None or len(failures) == workers):
        # Raise the cause, not a failure that it caused in another worker.
        place, (kind, text, trace) = min(failures, key=lambda failure: failure[1][0] == _slackwater.RunError.__name__)
        raise _slackwater.RunError(f"worker {place} failed: {kind}: {text}\n{trace}".rstrip())
    return results


def run_script(
    command: list[str], workers: int, servers: int, replicas: Optional[int], failure_timeout: float, shared_memory: bool
) -> int:
    """Runs a command as each worker of a run. Returns an exit status for the shell: 0, or that of
    the first worker that failed."""
    coordinator = free_address()
    serving = start_servers(coordinator, servers, workers, replicas, failure_timeout, shared_memory)
    children: list[Process] = []
    status, passed_on = 0, 0
    told: list[int] = []
    earlier = {name: signal.signal(name, lambda number, _: told.append(number)) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        for place in range(workers):
            environment = {**worker_environment(coordinator, place, workers), "SLACKWATER_FAILURE_TIMEOUT": str(failure_timeout)}
            # A terminal's Ctrl-C reaches only this process, which passes it on once, as torchrun
            # does.
            children.append(Process(f"worker {place}", command, environment, stdin=True))
        deadline: Optional[float] = None
        while any(child.poll() is None for child in children):
            time.sleep(0.05)
            for number in told[passed_on:]:
                passed_on += 1
                for child in children:
                    child.signal(number)
            failed = [(place, child.poll()) for place, child in enumerate(children) if child.poll()]
            if failed and status == 0 and (replicas is None or len(failed) == workers):
                place, status = failed[0]
                print(f"slackwater: worker {place} ended with status {status}", file=sys.stderr)
                deadline = time.monotonic() + failure_timeout + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                for child in children:
                    child.kill()
        return status if status >= 0 else 128 - status
    except BaseException:
        status = 1
        raise
    finally:
        for child in children:
            child.kill()
        # After a failure the servers may wait for workers that never join, so give them less time.
        end(serving, GRACE_SECONDS + failure_timeout if status == 0 else 1.0)
        for name, handler in earlier.items():
            signal.signal(name, handler)
