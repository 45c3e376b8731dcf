"""The compiled half of the package."""

from typing import Any, Optional

__version__: str

def free_address() -> str: ...

class Process:
    """A command that runs as a process in a session of its own: a terminal's Ctrl-C does not reach
    it. It ends when this object goes and, on Linux, when the thread that started it ends."""

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], *, stdin: bool = False
    ) -> None:
        """Starts it, with these variables added to the environment of this process."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> Optional[int]:
        """How it ended, if it has: its exit status, or minus the signal that killed it."""

    def signal(self, number: int) -> None:
        """Sends it a signal. Nothing happens if it has ended."""

    def kill(self) -> None:
        """Kills it, unless it has ended."""

    def end(self, limit_seconds: float) -> None:
        """Gives it so many seconds to end by itself, and then kills it."""

class SlackwaterError(RuntimeError):
    """Something that Slackwater was asked to do failed."""

class RunError(SlackwaterError):
    """The run is over for this process: start it again."""

class TableError(SlackwaterError):
    """A table, its keys or a batch do not fit."""

class RefusedError(SlackwaterError):
    """A server refused a push or pull; its rows are as they were."""

class Keys:
    """Rows of a table, made ready once and used again and again: a list that comes back is not sent again. ``Table.keys`` makes them."""

    def __len__(self) -> int: ...

class Ticket:
    """A push or pull under way: ``push_async``, ``pull_async`` and ``push_pull_async`` of a table return it at once."""

    def done(self) -> bool:
        """Whether a wait would return at once."""

    def wait(self) -> Any:
        """Waits until it is done, and returns what a pull filled. Raises what went wrong."""

    @property
    def clock(self) -> int:
        """Every update of clocks below this one is in what was read."""

    @property
    def staleness(self) -> int:
        """How many clocks the reader was ahead of what it read."""

    @property
    def failed_clocks(self) -> list[tuple[int, int, Optional[int], str]]:
        """Clocks that failed for all workers alike: clock, rank, row (if one was not finite) and what was wrong."""

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

class DataLease:
    """One range of the input in one epoch, this worker's to learn from until it is committed. ``slackwater.leases`` gives them out."""

    @property
    def number(self) -> int:
        """``epoch * ranges + range``."""

    @property
    def epoch(self) -> int:
        """Which pass over the input it is of, from 0."""

    @property
    def range(self) -> int:
        """Which range of the input it is, from 0."""

    @property
    def is_committed(self) -> bool:
        """Whether it was committed: nothing more can be pushed for it."""

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
        coordinator: str, place: Optional[int], join_limit: float, failure_timeout: float, shared_memory: bool
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
    ) -> None: ...
    def wait(self) -> None: ...
    def end(self) -> None: ...
