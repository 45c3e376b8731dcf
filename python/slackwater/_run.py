"""The run of this process: beginning or joining it, its workers, clocks and barriers, and leaving
it."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable, Optional, Union

from . import _slackwater

# torchrun's store listens at MASTER_PORT; the coordinator listens at the next port.
PORTS_AFTER_MASTER = 1


class Run:
    """A worker's membership in a run. :func:`slackwater.init` returns one. Leaving its ``with``
    block leaves the run.

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
        # Whether this process has made a DistributedOptimizer in lock-step.
        self._took_weights = False

    @property
    def rank(self) -> int:
        """This worker's number in the run, from 0."""
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
        """Waits until everything pushed is acknowledged, and leaves the run. From then on no worker
        waits for this one. Raises :class:`RunError` if the run is lost before that, unless an
        earlier call has raised it."""
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
        """Leaves a run that is lost, or that could not be left in good order."""
        self._session.abandon(reason)
        if self._server is not None:
            self._server.end()

    def _fail(self, error: BaseException) -> None:
        """Tells the other nodes that this worker failed, so that it does not count as finished. If
        this process runs the coordinator, waits until that has told them, too."""
        self._session.abandon(f"{type(error).__name__}: {error}")
        if self._server is not None:
            self._server.see_out()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind, error, trace) -> None:
        global _run
        if _run is self:
            _run = None
        if kind is None or issubclass(kind, SystemExit) and error.code in (None, 0):
            self.shutdown()
        else:
            self._fail(error)


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
    clock_timeout: Optional[float] = None,
    token_file: Optional[Union[str, "os.PathLike[str]"]] = None,
    insecure: bool = False,
) -> Run:
    """Begins or joins a run, and returns the :class:`Run`.

    Which run it is depends on how the program is started:

    * **Alone**, without arguments: a whole run in this process.
    * **By** ``torchrun`` (which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT): every process
      is a worker, and also serves a part of every table.
    * **By** ``python -m slackwater.run`` or :func:`slackwater.launch`: every process is a worker of
      the launcher's run. The launcher has started the servers.
    * **With** ``coordinator="host:port"``: the run of that coordinator, which ``slackwater server``
      serves. If ``size`` is given, the workers serve the run themselves.

    Called again, as in a notebook, it returns the current run. After a run was lost, it begins
    another.

    A worker that ends by an exception has failed, and the other nodes are told so; so has one that
    leaves the ``with`` block by ``sys.exit`` with a status other than 0. Without the block, a
    program that calls ``sys.exit(3)`` counts as finished, because Python does not tell exit
    handlers the status.

    * ``rank``: this worker's number, from 0. None takes a free one.
    * ``size``: how many workers the run has, if the workers serve it.
    * ``servers``: how many servers the workers run together; as many as workers unless set.
    * ``replicas``: how many servers hold each shard of every table, in an elastic run. None makes a
      static run, which ends when a process is lost.
    * ``shared_memory``: False has processes of one host talk over TCP.
    * ``join_limit``: how many seconds to wait until all processes have joined.
    * ``failure_timeout``: after how many silent seconds (10 unless set) a process counts as lost.
    * ``clock_timeout``: for how many seconds a worker may be in one clock, without waiting for
      others, before it counts as hung. None for any time. Counts where the workers serve the run.
    * ``token_file``: the token by which this process proves who it is, the same file for every
      process of the run. None takes ``SLACKWATER_TOKEN_FILE``, which the launchers set.
    * ``insecure``: True runs without a token: any process that can reach this one may control the
      run. So does ``SLACKWATER_INSECURE=1``, where there is no token.

    Raises :class:`RunError` if the coordinator does not answer, processes are missing at the limit,
    or this process is in a different run already. Raises ``ConnectionError`` for an address or a
    token that cannot be used, or if there is no token; and ``ValueError`` if the arguments
    contradict each other.

    >>> import slackwater
    >>> run = slackwater.init()
    >>> slackwater.init() is run
    True
    >>> slackwater.shutdown()
    """
    global _run
    if insecure and token_file is not None:
        raise ValueError("a run has a token (token_file=...) or is insecure (insecure=True), not both; give one of them")
    asked = (coordinator, rank, size, servers, replicas)
    if is_initialized():
        if asked not in (_run._asked, (None,) * 5):
            raise _slackwater.RunError(
                "this process is in a run already, which was begun with other arguments; call slackwater.shutdown() first"
            )
        return _run
    lost, _run = _run, None
    # A session that was left needs no end. A forked process must not end its parent's session.
    if lost is not None and lost._session.is_held:
        lost._let_go("the run was lost")
    given = os.environ
    if failure_timeout is None:
        failure_timeout = float(given.get("SLACKWATER_FAILURE_TIMEOUT", "10"))
    if coordinator is None and size is None and "SLACKWATER_COORDINATOR" in given:
        # Started by `slackwater.run` or `slackwater.launch`, which have started the servers.
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
        access = dict(token_file=token_file, insecure=insecure)
        if size is not None:
            if rank is None or not 0 <= rank < size:
                raise ValueError(f"rank {rank} of a run of {size} workers: say rank=0 to {size - 1}")
            if servers is None:
                servers = size
            server = _serve(coordinator, rank, size, servers, replicas, join_limit, failure_timeout, shared_memory, clock_timeout, access)
        try:
            session = _slackwater.Session.connect(coordinator, rank, join_limit, failure_timeout, shared_memory, **access)
        except BaseException:
            if server is not None:
                # Free the address, so that init() can be called again.
                server.end()
            raise
        _run = Run(session, server, coordinator, asked)
    return _run


def _serve(coordinator, rank, size, servers, replicas, join_limit, failure_timeout, shared_memory, clock_timeout, access):
    """Starts this process's share of the servers. They are spread over the ranks, and rank 0 also
    runs the coordinator."""
    threads = len(range(rank, servers, size))
    if threads == 0 and rank != 0:
        return None
    coordinate = (servers, size) if rank == 0 else None
    place = sum(len(range(earlier, servers, size)) for earlier in range(rank))
    return _slackwater.Server(
        coordinator,
        threads,
        coordinate,
        replicas,
        join_limit,
        failure_timeout,
        shared_memory,
        place if threads else None,
        clock_timeout,
        **access,
    )


def current() -> Run:
    """The run of this process. Raises :class:`RunError` if it is in no run."""
    if _run is None:
        raise _slackwater.RunError("this process is in no run; call slackwater.init() first")
    return _run


def is_initialized() -> bool:
    """Whether this process is in a run that it has not left and that is not lost."""
    return _run is not None and _run._session.is_open


def rank() -> int:
    """This worker's number in the run, from 0. Raises :class:`RunError` outside a run."""
    return current().rank


def size() -> int:
    """How many workers the run began with. Raises :class:`RunError` outside a run."""
    return current().size


def local_rank() -> int:
    """This worker's number among the workers of its host, from 0. Use it to choose one of the
    host's GPUs, for instance.

    Returns LOCAL_RANK, which ``torchrun``, ``slackwater.run`` and :func:`slackwater.launch` set.
    Without it, returns the worker's rank if the coordinator's address is 127.0.0.1 or localhost,
    because all processes are then on this host, and otherwise 0.

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
    """The ranks of the live workers. In an elastic run they differ from those of the beginning."""
    return current()._session.live_ranks()


def now() -> int:
    """This worker's clock: how many units of work it has finished. See :func:`clock`."""
    return current()._session.now()


def clock() -> None:
    """Ends a unit of work of this worker: adds 1 to its clock, the count of its finished units.

    Call it after each training step, for example. Workers whose reads wait for this worker's clock
    can then go on; how far ahead they may be is a table's ``slack``. Does not wait until the
    servers have the pushes of the clock.

    Raises :class:`RefusedError` if a server refused a push whose ticket the program has dropped
    since the last clock; the clock has ended all the same. Raises :class:`RunError` if the run is
    lost.

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
    """Waits until every live worker has called ``barrier()`` as often as this one. Raises
    :class:`RunError` if the run is lost.

    After it the servers have every push that a worker waited for (by ``push``, or a ticket's
    ``wait()``). They may not have pushes that were only begun.

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
    """Waits until everything pushed is acknowledged, and leaves the run. Does nothing outside a
    run, or if a call has raised that the run is lost. Raises :class:`RunError` if it finds the run
    lost."""
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
    # After an uncaught exception.
    failed = getattr(sys, "last_value", None)
    if failed is not None:
        run._fail(failed)
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
    clock_timeout: Optional[float] = None,
) -> list[Any]:
    """Runs ``fn(*arguments)`` in ``workers`` processes of this host, each a worker of one run.
    Returns a list of the functions' results, by rank.

    Each process has joined the run before it calls ``fn``, so ``fn`` can use tables at once. ``fn``
    may be a function of a notebook or of ``__main__``. If it cannot be pickled for a fresh process,
    this process is forked. In a forked process PyTorch computes with one thread.

    * ``servers``: how many servers hold the tables, as further processes or threads.
    * ``replicas``: how many servers hold each shard of every table. With 2, the run goes on when a
      worker or a server is lost, and the result of a lost worker is None. With None, a failure of
      any process ends the run.
    * ``failure_timeout``: after how many silent seconds a process counts as lost.
    * ``clock_timeout``: for how many seconds a worker may be in one clock, without waiting for
      others, before it counts as hung. None for any time.
    * ``shared_memory``: False has the processes talk over TCP, as on different hosts.

    The processes end with this one, even if it is killed. Raises :class:`RunError` with the worker
    and the cause if a worker fails without ``replicas``, or if all workers fail; also if this
    process is in a run itself. Raises ``ValueError`` without workers or servers.

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
        fn,
        *arguments,
        workers=workers,
        servers=servers,
        replicas=replicas,
        failure_timeout=failure_timeout,
        shared_memory=shared_memory,
        clock_timeout=clock_timeout,
    )
