"""The run that this process is a worker of: how it begins, who is in it, and how it ends."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable, Optional

from . import _slackwater

# Where torchrun's own store listens is MASTER_PORT; the coordinator listens at the next one.
PORTS_AFTER_MASTER = 1


class Run:
    """A worker's place in a run. ``slackwater.init()`` returns it; leaving its ``with`` block ends it for this process.

    >>> import slackwater
    >>> with slackwater.init() as run:
    ...     (run.rank, run.size)
    (0, 1)
    """

    def __init__(
        self, session: _slackwater.Session, server: Optional[_slackwater.Server], coordinator: Optional[str], asked: tuple
    ):
        self._session = session
        self._server = server
        self._coordinator = coordinator
        self._asked = asked
        self._tables: dict[str, Any] = {}
        # Whether an optimiser in lock-step was made.
        self._took_weights = False

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._session.rank

    @property
    def size(self) -> int:
        """How many workers the run began with."""
        return self._session.workers

    @property
    def servers(self) -> int:
        """How many servers the run began with."""
        return self._session.servers

    def shutdown(self) -> None:
        """Waits until everything pushed is acknowledged, and leaves the run. Nobody waits for this worker from then on. Raises if the run is lost before that,
        unless a call has said so."""
        if self._session.failure_was_reported:
            self._let_go("the run was lost")
            return
        try:
            self._session.close()
        except _slackwater.RunError:
            self._let_go("it could not leave")
            raise
        if self._server is not None:
            self._server.wait()

    def _let_go(self, reason: str) -> None:
        """Leaves without a goodbye."""
        self._session.abandon(reason)
        if self._server is not None:
            self._server.end()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind, error, trace) -> None:
        global _run
        if _run is self:
            _run = None
        if kind is None or issubclass(kind, SystemExit) and error.code in (None, 0):
            self.shutdown()
        else:
            # The others must not take this worker for one that has finished.
            self._session.abandon(f"{kind.__name__}: {error}")


_run: Optional[Run] = None


def init(
    coordinator: Optional[str] = None,
    *,
    rank: Optional[int] = None,
    size: Optional[int] = None,
    servers: Optional[int] = None,
    replicas: Optional[int] = None,
    shared_memory: bool = True,
    join_limit: float = 300.0,
    failure_timeout: Optional[float] = None,
) -> Run:
    """Begins, or joins, a run, and returns this worker's place in it.

    Without arguments, and outside of ``torchrun`` and ``slackwater.run``, that is a whole run in this process. Under them
    (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set) every process is a worker, and each serves a part of every table, too.
    With ``coordinator="host:port"`` it is the run of that coordinator: ``slackwater server`` or ``python -m slackwater.run --servers`` serves it, unless
    ``size`` is given, which again means that the workers serve.

    Called again, as a notebook does, it returns the run that there is; after a run was lost, it begins another.

    A worker that ends by an exception, or leaves the ``with`` block by ``sys.exit`` with a status other than 0, has failed, and the others are told so. Without the block a program that
    calls ``sys.exit(3)`` is taken for one that has finished: Python does not say how a process ends.

    ``failure_timeout`` is for how many seconds (10, if nothing is said) a process may be silent before it counts as lost; ``join_limit`` how long to wait for everybody.

    >>> import slackwater
    >>> run = slackwater.init()
    >>> slackwater.init() is run
    True
    >>> slackwater.shutdown()
    """
    global _run
    asked = (coordinator, rank, size, servers, replicas)
    if is_initialized():
        if asked not in (_run._asked, (None,) * 5):
            raise _slackwater.RunError(
                "this process is in a run already, which was begun in another way; call slackwater.shutdown() first"
            )
        return _run
    lost, _run = _run, None
    # One that was left is over, and that of the process which this one was forked from is not this one's to end.
    if lost is not None and lost._session.is_held:
        lost._let_go("the run was lost")
    given = os.environ
    if failure_timeout is None:
        failure_timeout = float(given.get("SLACKWATER_FAILURE_TIMEOUT", "10"))
    if coordinator is None and size is None and "SLACKWATER_COORDINATOR" in given:
        # Started by `slackwater.run` or `slackwater.launch`, which have started servers.
        coordinator = given["SLACKWATER_COORDINATOR"]
        rank = int(given["SLACKWATER_PLACE"]) if "SLACKWATER_PLACE" in given and rank is None else rank
    elif coordinator is None and "RANK" in given and "WORLD_SIZE" in given and "MASTER_ADDR" in given:
        rank = int(given["RANK"]) if rank is None else rank
        size = int(given["WORLD_SIZE"]) if size is None else size
        port = int(given.get("MASTER_PORT", "29500")) + PORTS_AFTER_MASTER
        coordinator = f"{given['MASTER_ADDR']}:{port}"
    if coordinator is None:
        if (size or 1) != 1:
            raise ValueError(f"a run of {size} workers needs a coordinator: init(coordinator='host:port', rank=…, size={size})")
        session = _slackwater.Session.embedded(servers or 1, 1)[0]
        _run = Run(session, None, None, asked)
    else:
        server = None
        if size is not None:
            if rank is None or not 0 <= rank < size:
                raise ValueError(f"rank {rank} of a run of {size} workers: say rank=0 to {size - 1}")
            if servers is None:
                servers = size
            server = _serve(coordinator, rank, size, servers, replicas, join_limit, failure_timeout, shared_memory)
        try:
            session = _slackwater.Session.connect(coordinator, rank, join_limit, failure_timeout, shared_memory)
        except BaseException:
            if server is not None:
                # So that init() can be called again, and finds the address free.
                server.end()
            raise
        _run = Run(session, server, coordinator, asked)
    return _run


def _serve(coordinator, rank, size, servers, replicas, join_limit, failure_timeout, shared_memory):
    """This process's share of the servers: they are dealt out by rank, and rank 0 coordinates."""
    threads = len(range(rank, servers, size))
    if threads == 0 and rank != 0:
        return None
    coordinate = (servers, size) if rank == 0 else None
    place = sum(len(range(earlier, servers, size)) for earlier in range(rank))
    return _slackwater.Server(
        coordinator, threads, coordinate, replicas, join_limit, failure_timeout, shared_memory, place if threads else None
    )


def current() -> Run:
    """The run of this process. Raises if there is none."""
    if _run is None:
        raise _slackwater.RunError("this process is in no run; call slackwater.init() first")
    return _run


def is_initialized() -> bool:
    """Whether this process is in a run: it has begun one, has not left it, and it is not lost."""
    return _run is not None and _run._session.is_open


def rank() -> int:
    """This worker's number, from 0."""
    return current().rank


def size() -> int:
    """How many workers the run began with."""
    return current().size


def local_rank() -> int:
    """This worker's number among those of its host, from 0: to choose one of the host's GPUs by, for instance.

    That is LOCAL_RANK, which ``torchrun``, ``slackwater.run`` and :func:`slackwater.launch` set. Without it, it is the worker's rank in a run that meets at this host's own
    address (127.0.0.1 or localhost), all of whose processes are here, and 0 in any other.

    >>> import slackwater
    >>> with slackwater.init():
    ...     slackwater.local_rank()
    0
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    run = current()
    host = (run._coordinator or "").rpartition(":")[0]
    return run.rank if host in ("localhost", "[::1]") or host.startswith("127.") else 0


def live_ranks() -> list[int]:
    """The workers that take part now; where processes come and go, others than those of the beginning."""
    return current()._session.live_ranks()


def now() -> int:
    """This worker's clock: how many units of work it has finished."""
    return current()._session.now()


def clock() -> None:
    """Ends this worker's clock: a unit of work is done, and whoever waits for it need not. Raises if a push that nobody waited for was refused since the last one.

    >>> import slackwater
    >>> with slackwater.init():
    ...     table = slackwater.Table("of clocks", rows=1, updater="sum", slack=0)
    ...     for _ in range(3):
    ...         ticket = table.push_async([1])
    ...         slackwater.clock()
    ...     slackwater.now(), table.pull().tolist()
    (3, [3.0])
    """
    current()._session.clock()


def barrier() -> None:
    """Waits until every worker stands at its barrier of the same count.

    What a worker waited for before (``push``, or a ticket's ``wait()``) is then on the servers; what it only began to push may not be.

    >>> import slackwater
    >>> with slackwater.init():
    ...     table = slackwater.Table("of barriers", rows=1, updater="sum", slack=None)
    ...     table.push([1])
    ...     slackwater.barrier()
    ...     table.pull().tolist() == [slackwater.size()]
    True
    """
    current()._session.barrier()


def shutdown() -> None:
    """Leaves the run: waits until everything pushed is acknowledged. Harmless when there is none, or when a call has said that it is lost."""
    global _run
    run, _run = _run, None
    if run is not None:
        run.shutdown()


@atexit.register
def _leave() -> None:
    global _run
    run, _run = _run, None
    if run is None or not run._session.is_held:
        return
    # An exception that nobody caught: the others should not wait for what never comes, nor take it for the end.
    failed = getattr(sys, "last_value", None)
    if failed is not None:
        run._session.abandon(f"{type(failed).__name__}: {failed}")
        return
    try:
        run.shutdown()
    except Exception as error:
        print(f"slackwater: {error}", file=sys.stderr)


def launch(
    fn: Callable[..., Any],
    *arguments: Any,
    workers: int = 4,
    servers: int = 2,
    replicas: Optional[int] = None,
    failure_timeout: float = 10.0,
    shared_memory: bool = True,
) -> list[Any]:
    """Runs ``fn(*arguments)`` in ``workers`` processes of this host, each of them a worker of one run, and returns what each returned, by rank.

    ``fn`` is called with the run begun, so it may use tables at once. Functions of a notebook or of ``__main__`` will do: where they
    cannot be sent to a fresh process, this one is forked, which works as long as it is in no run itself. A forked process has none of the threads that
    PyTorch computes with, and would wait for them: PyTorch computes with one thread there.

    * ``replicas``: how many servers hold each shard of every table. With 2, the run goes on without a worker, or a server, that is lost; what a lost worker would have
      returned is then None. Without, a failure of any ends them all, and is raised here.
    * ``failure_timeout``: for how many seconds a process may be silent before it counts as lost.
    * ``shared_memory``: False has the processes talk over TCP, as those of different hosts do.

    The processes end with the one that launched them, however that ends.

    >>> import slackwater
    >>> def add_up(number):
    ...     table = slackwater.Table("sums", rows=1, updater="sum", slack=0)
    ...     table.push([number + slackwater.rank()])
    ...     slackwater.clock()
    ...     return table.pull().tolist()
    >>> slackwater.launch(add_up, 10, workers=2, servers=1)
    [[21.0], [21.0]]
    """
    from ._launch import launch as start

    return start(
        fn, *arguments, workers=workers, servers=servers, replicas=replicas, failure_timeout=failure_timeout, shared_memory=shared_memory
    )
