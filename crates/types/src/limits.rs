//! Limits on what peers can make a node hold or do: names, counts, memory, connections, deadlines
//! and rates. docs/limits.md explains each of them, and a test compares it with this list.
//!
//! Protocol windows of workers and shards are in `bounds.rs`.

use crate::Span;

/// Defines the limits, and a list of their names and values for the test of docs/limits.md.
macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $kind:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: limits!(@type $kind) = $value;)*

        /// Name and default of each limit, as docs/limits.md writes them.
        #[cfg(test)]
        fn all() -> Vec<(&'static str, String)> {
            vec![$((stringify!($name), limits!(@text $kind $value))),*]
        }
    };
    (@type Bytes) => { usize };
    (@type Count) => { usize };
    (@type Time) => { Span };
    (@text Bytes $value:expr) => { bytes($value) };
    (@text Count $value:expr) => { $value.to_string() };
    (@text Time $value:expr) => { format!("{} s", Span::as_secs_f64($value)) };
}

limits! {
    /// The longest name of a table, a data set, a job, a codec or an updater.
    NAME_BYTES: Bytes = 255;
    /// The longest description of a data set.
    TEXT_BYTES: Bytes = 64 << 10;
    /// The longest address at which a node says that it listens.
    ADDRESS_BYTES: Bytes = 256;
    /// The largest number of tables of a run.
    TABLES: Count = 4096;
    /// The largest number of data sets of a run.
    DATA_SETS: Count = 4096;
    /// The largest number of codecs of a table in one direction, and of settings of an updater.
    POLICY_ITEMS: Count = 64;
    /// New nodes that the coordinator names in a second, on average.
    JOINS_PER_SECOND: Count = 256;
    /// New nodes that the coordinator names at once.
    JOINS_AT_ONCE: Count = 1024;
    /// Frames that a coordinator handles before it sends answers.
    FRAMES_PER_TURN: Count = 256;
    /// Answers of a coordinator that wait for the registry. Beyond them, it handles only
    /// heartbeats.
    HELD_ANSWERS: Count = 16_384;

    /// Connections of a node in all.
    CONNECTIONS: Count = 16_384;
    /// Connections of peers without a place in the run. A new one closes the oldest.
    STRANGERS: Count = 256;
    /// The same from one address.
    STRANGERS_PER_ADDRESS: Count = 128;
    /// Connections of peers with one key.
    CONNECTIONS_PER_KEY: Count = 1024;
    /// Connections accepted before the node handles frames again.
    ACCEPTED_AT_ONCE: Count = 32;

    /// From the acceptance of a connection to the end of its first frame.
    HANDSHAKE_TIMEOUT: Time = Span::from_secs(10);
    /// From the header of a frame to its last byte, beside the time at `FRAME_BYTES_PER_SECOND`.
    FRAME_TIMEOUT: Time = Span::from_secs(30);
    /// The slowest pace at which a frame may arrive.
    FRAME_BYTES_PER_SECOND: Bytes = 64 << 10;
    /// How long a peer without a place may say nothing, or leave its answers unread.
    IDLE_TIMEOUT: Time = Span::from_secs(120);

    /// The largest frame of a peer without a place.
    STRANGER_FRAME_BYTES: Bytes = 64 << 10;
    /// Memory for frames of which the header has arrived and the rest has not, of a node.
    PROMISED_BYTES: Bytes = 128 << 20;
    /// The first buffer for a frame beyond `PROMISED_BYTES`. It doubles while bytes arrive.
    FIRST_BUFFER_BYTES: Bytes = 16 << 10;
    /// Encrypted bytes that a peer without a place may have unprocessed.
    STRANGER_READ_BYTES: Bytes = 64 << 10;
    /// Answers that may wait for a peer while its requests are read.
    PAUSE_BYTES: Bytes = 4 << 20;
    /// The same for a peer without a place.
    STRANGER_PAUSE_BYTES: Bytes = 256 << 10;
    /// Bytes that may wait for a peer of a server or coordinator. Its connection closes beyond.
    OUTBOX_BYTES: Bytes = 1 << 30;
    /// The same for a peer without a place.
    STRANGER_OUTBOX_BYTES: Bytes = 16 << 20;

    /// Log lines about peers of one node in `LOG_WINDOW`.
    LOG_LINES: Count = 30;
    /// The time over which log lines are counted.
    LOG_WINDOW: Time = Span::from_secs(10);
}

/// A number of bytes for people.
#[cfg(test)]
fn bytes(count: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| count >= *size && count.is_multiple_of(*size));
    unit.map_or(format!("{count} bytes"), |(size, name)| format!("{} {name}", count / size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Rows of the tables of docs/limits.md whose second cell is the name of a limit.
    fn documented() -> BTreeMap<&'static str, &'static str> {
        let page = include_str!("../../../docs/limits.md");
        let rows = page.lines().filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [_, name, default, ..] = cells[..] else { return None };
            Some((name.strip_prefix('`')?.strip_suffix('`')?, default))
        });
        rows.collect()
    }

    #[test]
    fn docs_list_every_limit_with_its_default() {
        let mut documented = documented();
        for (name, default) in all() {
            assert_eq!(documented.remove(name), Some(default.as_str()), "docs/limits.md, {name}");
        }
        assert!(documented.is_empty(), "docs/limits.md lists limits that do not exist: {documented:?}");
    }
}
