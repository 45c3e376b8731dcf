"""Type stub of the compiled half of the package. The crate ``crates/python`` implements it."""

from typing import Any, Optional

__version__: str

def free_address() -> str: ...

class RunToken:
    """The token of a run that a launcher starts, in a file that only this user can read. The file
    is removed when this object is dropped."""

    @property
    def path(self) -> str: ...

class Process:
    """A child process in a session of its own, so that a terminal's Ctrl-C does not reach it. It is
    killed when this object is dropped and, on Linux, when the thread that started it ends."""

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], *, stdin: bool = False
    ) -> None:
        """Starts the command, with these variables added to this process's environment."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> Optional[int]:
        """None while it runs; then its exit status, or minus the number of the signal that killed
        it."""

    def signal(self, number: int) -> None:
        """Sends the process a signal, by number. Does nothing if it has ended."""

    def kill(self) -> None:
        """Kills the process, unless it has ended."""

    def end(self, limit_seconds: float) -> None:
        """Waits ``limit_seconds`` for the process to end by itself, and then kills it."""

class SlackwaterError(RuntimeError):
    """The base class of Slackwater's own exceptions."""

class RunError(SlackwaterError):
    """The run is over for this process, or it is in no run. Start the run again, or call
    ``init()``.

    If a node was lost, ``node`` is its name, such as ``"worker 3"``, and ``reason`` says how it was
    lost. Otherwise both are None."""

    node: Optional[str]
    reason: Optional[str]

class TableError(SlackwaterError):
    """A table's settings, its keys, a batch or a data lease do not fit."""

class RefusedError(SlackwaterError):
    """A server refused a push or pull, and left its rows as they were."""

class Keys:
    """A key list of a table, made once to be used for many pushes and pulls. The servers keep it,
    so a repeated list is not sent again. ``Table.keys`` returns one; ``len()`` is how many keys
    were given."""

    def __len__(self) -> int: ...

class Ticket:
    """A push or pull under way. ``push_async``, ``pull_async``, ``push_pull_async`` and
    ``delete_async`` of a table return one at once."""

    def done(self) -> bool:
        """Whether the operation is done or has failed, so that ``wait`` would return at once."""

    def wait(self) -> Any:
        """Waits until the operation is done. Returns the array that a pull filled, or None for a
        push. Raises ``RefusedError`` if a server refused it, and ``RunError`` if the run is lost.
        Waiting again returns the same at once."""

    @property
    def clock(self) -> int:
        """The rows reflect every update of clocks below this one."""

    @property
    def staleness(self) -> int:
        """How many clocks the reader was ahead of the frontier that the rows reflect."""

    @property
    def failed_clocks(self) -> list[tuple[int, int, Optional[int], str]]:
        """Clocks that failed for all workers alike, as tuples: clock, rank, row (if a number was
        not finite) and the reason."""

class Table:
    def keys(self, keys: Any) -> Keys: ...
    def push(self, values: Any, keys: Any, examples: int, lease: Optional[DataLease] = None) -> Ticket: ...
    def push_lent(self, values: Any, keys: Any, examples: int) -> Ticket: ...
    def pull(self, out: Any, keys: Any) -> Ticket: ...
    def push_pull(self, values: Any, out: Any, keys: Any, examples: int) -> Ticket: ...
    def pull_all(self) -> tuple[bytes, bytes, int]: ...
    def pull_all_row_state(self) -> tuple[bytes, bytes, int]: ...
    def set_rows(self, values: Any, keys: Any) -> Ticket: ...
    def delete(self, keys: Any) -> Ticket: ...
    def set_rate(self, rate: float) -> None: ...
    def time_push(self, values: Any, times: int) -> float: ...
    def time_pull(self, times: int) -> float: ...

class Feed:
    @property
    def dtype(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def clock(self) -> int: ...
    def next(self, limit: Optional[float]) -> Optional[Changes]: ...

class Changes:
    @property
    def clock(self) -> int: ...
    @property
    def shard(self) -> int: ...
    @property
    def starts_over(self) -> bool: ...
    @property
    def keys(self) -> bytes: ...
    @property
    def rows(self) -> bytes: ...
    @property
    def deleted(self) -> bytes: ...
    def covers(self, keys: list[int]) -> list[bool]: ...

def follow(coordinator: str, table: str, rows: bool, clock: Optional[int], limit: float) -> Feed: ...

class DataLease:
    """One range of the input in one epoch. It is this worker's until the worker commits it. Iterate
    over ``slackwater.leases`` to get them."""

    @property
    def number(self) -> int:
        """The number of the lease: ``epoch * ranges + range``."""

    @property
    def epoch(self) -> int:
        """The epoch that it belongs to, from 0."""

    @property
    def range(self) -> int:
        """The range of the input, from 0."""

    @property
    def is_committed(self) -> bool:
        """Whether it is committed. Pushes for a committed lease are refused."""

class DataLeases:
    def take(self) -> Optional[DataLease]: ...
    def commit(self, lease: DataLease) -> None: ...
    def end(self) -> None: ...
    @property
    def share(self) -> int: ...

class Session:
    @staticmethod
    def embedded(servers: int, workers: int) -> list[Session]: ...
    @staticmethod
    def connect(
        coordinator: str,
        place: Optional[int],
        join_limit: float,
        failure_timeout: float,
        shared_memory: bool,
        token_file: Optional[str] = None,
        insecure: bool = False,
    ) -> Session: ...
    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def servers(self) -> int: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def failure_was_reported(self) -> bool: ...
    def check(self) -> None: ...
    @property
    def joined_late(self) -> bool: ...
    @property
    def others_may_come(self) -> bool: ...
    def live_ranks(self) -> list[int]: ...
    def unique_number(self) -> int: ...
    def now(self) -> int: ...
    def clock(self) -> None: ...
    def barrier(self) -> None: ...
    def stand_at_barrier(self) -> int: ...
    def is_past_barrier(self, number: int) -> bool: ...
    def table(self, spec: dict[str, Any]) -> Table: ...
    def follow(self, table: Table, rows: bool, clock: Optional[int]) -> Feed: ...
    def leases(self, terms: dict[str, Any]) -> DataLeases: ...
    def close(self) -> None: ...
    def abandon(self, reason: str) -> None: ...

class Server:
    def __init__(
        self,
        coordinator: str,
        threads: int,
        coordinate: Optional[tuple[int, int]],
        replicas: Optional[int],
        join_limit: float,
        failure_timeout: float,
        shared_memory: bool,
        place: Optional[int] = None,
        clock_timeout: Optional[float] = None,
        token_file: Optional[str] = None,
        insecure: bool = False,
    ) -> None: ...
    def wait(self) -> None: ...
    def see_out(self) -> None: ...
    def end(self) -> None: ...
