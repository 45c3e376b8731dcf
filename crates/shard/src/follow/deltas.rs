//! The delta log: numbered, lossily encoded differences that readers add to their cached rows.
//!
//! Used where a lossy codec shrinks what workers read. When the frontier moves, the log encodes the
//! change of each published row since the last delta, once for all readers. What the codec leaves
//! out (the residual) stays the difference between the row and its published value, and is part of
//! the next delta. Weights themselves are never encoded.
//!
//! Readers add deltas in order and hold the published values bit for bit. A reader that is behind
//! the log's history reads the published rows whole.
//!
//! When a published row is deleted, the sequence of deltas starts over: nothing is published, and
//! readers read their rows whole, with the exact values of the moment.

use crate::changes::ChangeLog;
use crate::rows::Index;
use crate::view::{Row, ShardView};
use codec::{BatchRows, CodecChoice, Formats, Meter, PayloadDecoder, PayloadEncoder, Pipeline, Stopwatch, TableCodecs};
use std::collections::{BTreeSet, VecDeque};
use types::{CacheSpec, Clock, NumberType, PART_BYTES, PlanNumber, Position, PositionRange, TableShape, TableSpec};
use update::{ABSENT, Number, add_into, first_not_finite};
use wire::{ChangeChunk, CodecPipeline, Delta, Frame, Head, KeyPart, Message, Outbox, Payload, READ_WHOLE, Signature};

/// The history may always take this many bytes, however few rows are published.
const HISTORY_BYTES: usize = 64 << 10;
/// Assumed overhead of a delta in bytes, beside its keys and values.
const DELTA_COST: usize = 128;
/// A delta may include this many lagging rows, even if no other row changed.
const LAGGING_ROWS: usize = 64;
/// A row is lagging if its residual exceeds this share of the row's largest number.
const LAGGING_SHARE: f32 = 1.0 / 512.0;

/// One delta, as it is sent to every reader that asks for it.
#[derive(Clone)]
struct NumberedDelta {
    changes: ChangeChunk,
    /// The frontier that readers reach with the last chunk.
    reaches: Clock,
    keys: KeyPart,
    values: Payload,
    formats: Formats,
}

impl NumberedDelta {
    fn cost(&self) -> usize {
        let keys = if let KeyPart::Packed { packed, .. } = &self.keys { packed.len() } else { 0 };
        keys + self.values.len() + DELTA_COST
    }
}

/// The published rows, as readers hold them, and the deltas that led there.
pub(crate) struct DeltaLog {
    width: usize,
    max_rows: usize,
    encoder: PayloadEncoder,
    decoder: PayloadDecoder,
    /// Number of the present sequence of deltas. When a new one begins, readers have to read their
    /// rows anew.
    sequence: u64,
    /// Shape of `index`: sparse even for a dense table, because only some rows are published.
    shape: TableShape,
    /// Place of each published row in `rows`, by position.
    index: Index,
    /// Published rows, `width` numbers each, in the order in which they were published.
    rows: Vec<f32>,
    /// Positions of the rows in `rows`.
    positions: Vec<u64>,
    /// The batch of the change log up to which changes are encoded.
    cursor: u64,
    /// Positions of rows with a large residual, by [`LAGGING_SHARE`].
    lagging: BTreeSet<u64>,
    /// The last deltas, oldest first.
    history: VecDeque<NumberedDelta>,
    history_bytes: usize,
    /// The batch of the change log that the last delta brings readers to.
    number: u64,
}

impl DeltaLog {
    /// The delta log of a table whose workers cache rows and whose codec for reads is lossy, chosen
    /// or by default. `None` for other tables.
    pub fn new(
        spec: &TableSpec,
        codecs: &TableCodecs,
        workers: usize,
        seed: u64,
        stopwatch: Stopwatch,
    ) -> Option<Self> {
        let CacheSpec::Rows { max_rows } = spec.cache else { return None };
        let pipeline = match &codecs.down {
            CodecChoice::Pipeline(pipeline) => pipeline.is_lossy().then(|| pipeline.clone())?,
            CodecChoice::Auto => {
                TableCodecs::can_step(spec).then(|| Pipeline::parse(["keys", "1bit"]).unwrap_or_default())?
            }
        };
        let width = spec.width as usize;
        let shape = TableShape::Sparse { placement: spec.shape.placement(), max_rows };
        Some(Self {
            width,
            max_rows: usize::try_from(max_rows).unwrap_or(usize::MAX).saturating_mul(workers.max(1)),
            encoder: PayloadEncoder::forgetful(&pipeline, NumberType::F32, width, seed, stopwatch),
            decoder: PayloadDecoder::default(),
            sequence: 1,
            shape,
            index: Index::new(shape, PositionRange::ALL),
            rows: Vec::new(),
            positions: Vec::new(),
            cursor: 0,
            lagging: BTreeSet::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            number: 0,
        })
    }

    /// Begins a new sequence: readers have to read their rows anew.
    fn start_over(&mut self) {
        self.sequence += 1;
        self.index = Index::new(self.shape, PositionRange::ALL);
        self.rows.clear();
        self.positions.clear();
        self.lagging.clear();
        self.history.clear();
        self.history_bytes = 0;
    }

    /// Begins a new sequence under a plan. Its number differs from all that another server may have
    /// used for this shard.
    pub fn start_over_at(&mut self, plan: PlanNumber) {
        self.sequence = plan.0 << 32;
        self.start_over();
    }

    /// Rows, at rising positions, were deleted: they have their initial values again. If one of
    /// them is published, a new sequence begins, because an encoded difference would bring readers
    /// only near these values.
    pub fn rows_deleted(&mut self, rows: &[Row]) {
        let positions: Vec<u64> = rows.iter().map(|(position, _)| *position).collect();
        if self.is_followed() && self.places(&positions).iter().any(|place| *place != ABSENT) {
            self.start_over();
        }
    }

    /// What encoding has cost and gained.
    pub fn meter(&self) -> &Meter {
        self.encoder.meter()
    }

    /// The sequence of deltas, and the batch that the last of them brings readers to.
    pub fn last(&self) -> (u64, u64) {
        (self.sequence, self.number)
    }

    /// Places of positions in `rows`; `ABSENT` for a row that is not published.
    fn places(&self, positions: &[u64]) -> Vec<u32> {
        let mut places = Vec::new();
        self.index.find(positions, &mut places);
        places
    }

    /// How many rows are published.
    fn len(&self) -> usize {
        self.rows.len() / self.width
    }

    /// Whether rows are published, because a worker reads deltas.
    pub fn is_followed(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The batch after which it needs the change log.
    pub fn needs_after(&self) -> Option<u64> {
        self.is_followed().then_some(self.cursor)
    }

    /// A reader reads these rows. Replaces the value of each published row by its published value.
    /// The other rows are published from now on, with the values given.
    ///
    /// Returns the sequence and the batch of its last delta; `None` if these are more rows than may
    /// be published. `last`: the last closed batch of the change log.
    pub fn join(&mut self, last: u64, positions: &[u64], values: &mut [f32]) -> Option<(u64, u64)> {
        if positions.len() > self.max_rows {
            return None;
        }
        let mut places = self.places(positions);
        let unknown = places.iter().filter(|place| **place == ABSENT).count();
        if self.len() + unknown > self.max_rows {
            self.start_over();
            places.fill(ABSENT);
        }
        if !self.is_followed() {
            self.cursor = last;
        }
        let new: Vec<u64> = positions
            .iter()
            .zip(&places)
            .filter(|(_, place)| **place == ABSENT)
            .map(|(position, _)| *position)
            .collect();
        self.index.insert(&new.iter().copied().zip(self.len() as u32..).collect::<Vec<_>>());
        for (place, row) in places.into_iter().zip(values.chunks_exact_mut(self.width)) {
            match place {
                ABSENT => self.rows.extend_from_slice(row),
                place => row.copy_from_slice(&self.rows[place as usize * self.width..][..self.width]),
            }
        }
        self.positions.extend(new);
        Some(self.last())
    }

    /// Positions of rows whose difference is to be sent now: published rows that changed, and up to
    /// as many lagging rows.
    fn rows_to_send(&mut self, changed: &[u64]) -> Vec<u64> {
        let places = self.places(changed);
        let published = changed.iter().zip(places).filter(|(_, place)| *place != ABSENT).map(|(position, _)| *position);
        let mut rows: Vec<u64> = published.collect();
        for _ in 0..rows.len().max(LAGGING_ROWS) {
            let Some(lagging) = self.lagging.pop_first() else { break };
            rows.push(lagging);
        }
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Encodes the difference of each row from its published value. `values` are the rows as they
    /// are now, and are overwritten. `None` if no row differs, or if a change overflows and a new
    /// sequence begins.
    fn delta(&mut self, positions: &[u64], values: &mut [f32], reaches: Clock) -> Option<NumberedDelta> {
        let places = self.places(positions);
        let Self { width, rows, encoder, decoder, .. } = self;
        let width = *width;
        let mut moved = Vec::new();
        let mut moved_places = Vec::new();
        let mut kept = 0;
        for ((position, place), start) in positions.iter().zip(places).zip((0..).step_by(width)) {
            if place == ABSENT {
                continue;
            }
            let published = &rows[place as usize * width..][..width];
            let row = &mut values[start..start + width];
            row.iter_mut().zip(published).for_each(|(value, published)| *value -= published);
            // Rows without a difference are not sent.
            if row.iter().any(|change| *change != 0.0) {
                moved.push(*position);
                moved_places.push(place);
                values.copy_within(start..start + width, kept);
                kept += width;
            }
        }
        let changes = &values[..kept];
        if moved.is_empty() {
            return None;
        }
        let run = moved[moved.len() - 1] - moved[0] == moved.len() as u64 - 1;
        let list = if run {
            BatchRows::Run { first: Position(moved[0]), count: moved.len() }
        } else {
            BatchRows::List(&moved)
        };
        let (payload, formats) = match encoder.encode(list, bytemuck::cast_slice(changes)) {
            Some((bytes, formats)) => (Payload::new(bytes), formats),
            None => (Payload::new(changes.to_vec()), Formats::default()),
        };
        let mut sent = vec![0f32; kept];
        let out = bytemuck::cast_slice_mut(&mut sent);
        let readable = decoder.decode(formats, payload.bytes(), NumberType::F32, width, out).is_ok();
        if !readable || first_not_finite(&sent).is_some() {
            // A change that an f32 cannot hold: readers read whole rows instead.
            self.start_over();
            return None;
        }
        encoder.meter_mut().compare(changes, &sent);
        for (index, (place, change)) in moved_places.into_iter().zip(sent.chunks_exact(width)).enumerate() {
            let published = &mut rows[place as usize * width..][..width];
            let largest = |row: &[f32]| row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let left = changes[index * width..][..width].iter().zip(change).map(|(change, sent)| change - sent);
            let left = left.fold(0f32, |largest, left| largest.max(left.abs()));
            add_into(published, change);
            // The residual is part of the row's next delta. A lagging row gets one even if it does
            // not change.
            if left > LAGGING_SHARE * largest(published) {
                self.lagging.insert(moved[index]);
            } else {
                self.lagging.remove(&moved[index]);
            }
        }
        let keys = if run {
            KeyPart::Run { first: Position(moved[0]), count: moved.len() as u64 }
        } else {
            let mut packed = Vec::new();
            codec::keys::encode(&moved, &mut packed);
            KeyPart::Packed {
                signature: Signature(0),
                start: 0,
                count: moved.len() as u32,
                packed: Payload::new(packed),
            }
        };
        Some(NumberedDelta { changes: ChangeChunk::default(), reaches, keys, values: payload, formats })
    }

    /// Appends deltas that belong together and bring readers to batch `last` of the change log.
    fn append(&mut self, mut deltas: Vec<NumberedDelta>, last: u64) {
        let from = self.number;
        let count = deltas.len();
        if count == 0 {
            return;
        }
        for (chunk, delta) in (0u32..).zip(&mut deltas) {
            delta.changes = ChangeChunk { from, to: last, chunk, ends: chunk as usize + 1 == count };
        }
        self.number = last;
        self.history_bytes += deltas.iter().map(NumberedDelta::cost).sum::<usize>();
        self.history.extend(deltas);
        // Deltas that are larger than all rows are of no use: the reader reads the rows instead.
        let most = HISTORY_BYTES.max(self.rows.len() * 4);
        while self.history_bytes > most
            && let Some(to) = self.history.front().map(|oldest| oldest.changes.to)
        {
            let chunks = self.history.partition_point(|delta| delta.changes.to <= to);
            self.history_bytes -= self.history.drain(..chunks).map(|delta| delta.cost()).sum::<usize>();
        }
    }

    /// The deltas after batch `number`. `None` if some of them are no longer in the history.
    fn after(&self, number: u64) -> Option<impl Iterator<Item = &NumberedDelta>> {
        let first = self.history.partition_point(|delta| delta.changes.to <= number);
        let next = self.history.get(first).map_or(self.number, |delta| delta.changes.from);
        (next == number).then(|| self.history.range(first..))
    }
}

impl DeltaLog {
    /// The frontier has moved: encodes the changes of rows, once for all readers.
    pub fn publish<T: Number>(&mut self, frontier: Clock, log: &mut ChangeLog, view: &ShardView<'_, T>) {
        if !self.is_followed() {
            return;
        }
        let last = log.close();
        let changed = self.rows_to_send(&log.since(self.cursor).rows);
        self.cursor = last;
        let mut deltas = Vec::new();
        let sequence = self.sequence;
        let rows_per_part = (PART_BYTES / (view.rows.width() * size_of::<T>() + 8)).max(1);
        for positions in changed.chunks(rows_per_part) {
            let mut values = vec![T::ZERO; positions.len() * view.rows.width()];
            view.rows.read_all(frontier, positions, &view.slots(positions), &mut values);
            // Only tables of f32 have a delta log.
            let values: &mut [f32] = bytemuck::cast_slice_mut(&mut values);
            deltas.extend(self.delta(positions, values, frontier));
        }
        if self.sequence == sequence {
            self.append(deltas, last);
        }
    }

    /// Sends a reader the deltas after batch `delta`, the last one that it has, to bring `rows`
    /// rows up to date. Returns the sequence and batch that the reader has then. `None` if the
    /// history lacks the deltas; [`READ_WHOLE`] if they are larger than the rows.
    pub fn send<T: Number>(
        &self,
        (delta, rows): (u64, u64),
        head: Head,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> Option<(u64, u64)> {
        let (sequence, _) = self.last();
        let row_bytes = (view.rows.width() * size_of::<T>()) as u64;
        let bytes: usize = self.after(delta)?.map(NumberedDelta::cost).sum();
        if bytes as u64 > rows.saturating_mul(row_bytes).saturating_add(DELTA_COST as u64) {
            return Some(READ_WHOLE);
        }
        for entry in self.after(delta)? {
            let head = Head { codecs: CodecPipeline(entry.formats.0), ..head };
            let delta = Delta {
                table: view.identity.table,
                shard: view.identity.shard(),
                sequence,
                changes: entry.changes,
                reaches: entry.reaches,
                keys: entry.keys.clone(),
                values: entry.values.clone(),
            };
            out.send(Frame { head, message: Message::Delta(delta) });
        }
        Some(self.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use types::{Codecs, Combine, Reduce};

    fn delta_log(pipeline: &[&str], max_rows: u64) -> DeltaLog {
        let spec = TableSpec::dense("t", 1000, 64)
            .combine(Combine::Clock(Reduce::Sum))
            .cached(max_rows)
            .codecs(Codecs::both(pipeline.iter().copied()));
        let codecs = TableCodecs::of(&spec).expect("they go together");
        DeltaLog::new(&spec, &codecs, 1, 7, Stopwatch::default()).expect("lossy")
    }

    /// Encodes and appends one delta.
    fn publish(delta_log: &mut DeltaLog, positions: &[u64], values: &mut [f32]) {
        let delta = delta_log.delta(positions, values, Clock(0));
        let last = delta_log.number + 1;
        delta_log.append(delta.into_iter().collect(), last);
    }

    /// Decodes deltas as a reader does.
    fn replay(delta_log: &DeltaLog, from: u64, copy: &mut BTreeMap<u64, Vec<f32>>) -> bool {
        let Some(deltas) = delta_log.after(from) else { return false };
        for entry in deltas {
            let positions: Vec<u64> = match &entry.keys {
                KeyPart::Run { first, count } => (first.0..first.0 + count).collect(),
                KeyPart::Packed { count, packed, .. } => {
                    let mut positions = vec![0; *count as usize];
                    codec::keys::decode(packed.bytes(), &mut positions).expect("readable");
                    positions
                }
                other => panic!("{other:?}"),
            };
            let mut changes = vec![0f32; positions.len() * 64];
            let out = bytemuck::cast_slice_mut(&mut changes);
            PayloadDecoder::default()
                .decode(entry.formats, entry.values.bytes(), NumberType::F32, 64, out)
                .expect("readable");
            for (position, change) in positions.iter().zip(changes.chunks_exact(64)) {
                if let Some(row) = copy.get_mut(position) {
                    add_into(row, change);
                }
            }
        }
        true
    }

    #[test]
    fn delta_readers_hold_the_published_rows_bit_for_bit_and_converge() {
        for pipeline in [&["1bit"][..], &["topk=20%", "zstd"], &["fixed4"], &["bf16"]] {
            let mut delta_log = delta_log(pipeline, 1000);
            let mut rows: BTreeMap<u64, Vec<f32>> = (0..20).map(|row| (row * 3, vec![row as f32; 64])).collect();
            let mut first: Vec<f32> = rows.values().flatten().copied().collect();
            delta_log.join(0, &rows.keys().copied().collect::<Vec<_>>(), &mut first);
            let mut copy = rows.clone();
            let mut seen = 0;
            let mut errors = Vec::new();
            for clock in 0..60u32 {
                let target = if clock < 30 { 1.0 } else { 0.0 };
                let mut positions = Vec::new();
                for (position, row) in rows.iter_mut().filter(|(position, _)| *position % 2 == 0 || clock % 3 == 0) {
                    for (column, value) in row.iter_mut().enumerate() {
                        *value += target * ((column * 7 + *position as usize + clock as usize) % 11) as f32 * 0.1;
                    }
                    positions.push(*position);
                }
                let mut values: Vec<f32> = positions.iter().flat_map(|position| rows[position].clone()).collect();
                publish(&mut delta_log, &positions, &mut values);
                assert!(replay(&delta_log, seen, &mut copy));
                seen = delta_log.last().1;
                for (position, row) in &copy {
                    let place = delta_log.places(&[*position])[0] as usize;
                    assert_eq!(row[..], delta_log.rows[place * 64..][..64], "{pipeline:?} at {clock}");
                }
                let apart = |(position, row): (&u64, &Vec<f32>)| -> f32 {
                    row.iter().zip(&rows[position]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
                };
                errors.push(copy.iter().map(apart).fold(0.0, f32::max));
            }
            assert!(errors[59] < 0.2 * errors[29].max(0.05), "{pipeline:?}: {errors:?}");
        }
    }

    #[test]
    fn delta_log_bounds_its_history_and_refuses_readers_before_it() {
        let mut delta_log = delta_log(&["1bit"], 1000);
        let positions: Vec<u64> = (0..100).collect();
        delta_log.join(0, &positions, &mut vec![0.0; 6400]);
        for clock in 1..200u32 {
            publish(&mut delta_log, &positions, &mut vec![(clock * clock) as f32; 6400]);
            assert!(delta_log.history_bytes <= HISTORY_BYTES.max(6400 * 4));
        }
        assert_eq!(delta_log.last(), (1, 199));
        assert!(delta_log.after(199).is_some_and(|deltas| deltas.count() == 0));
        assert!(delta_log.after(195).is_some_and(|deltas| deltas.count() == 4));
        assert!(delta_log.after(0).is_none() && delta_log.after(200).is_none());
    }

    #[test]
    fn delta_log_numbers_chunks_that_belong_together_and_drops_them_together() {
        let mut delta_log = delta_log(&["1bit"], 1000);
        delta_log.join(0, &[0, 1], &mut [0.0; 2 * 64]);
        for last in [4, 9] {
            let values = |row: usize| vec![(last as usize * 7 + row) as f32; 64];
            let deltas = (0..2).filter_map(|row| delta_log.delta(&[row as u64], &mut values(row), Clock(last)));
            let deltas: Vec<NumberedDelta> = deltas.collect();
            delta_log.append(deltas, last);
        }
        let chunks = |number| -> Option<Vec<(u64, u64, u32, bool)>> {
            let chunk = |ChangeChunk { from, to, chunk, ends }| (from, to, chunk, ends);
            delta_log.after(number).map(|deltas| deltas.map(|delta| chunk(delta.changes)).collect())
        };
        assert_eq!(chunks(4), Some(vec![(4, 9, 0, false), (4, 9, 1, true)]));
        assert_eq!((chunks(0).map(|all| all.len()), chunks(9)), (Some(4), Some(vec![])));
        assert_eq!((chunks(3), chunks(10)), (None, None), "no delta ends at these batches");
    }

    #[test]
    fn delta_log_sends_residuals_of_rows_that_stop_changing() {
        let mut delta_log = delta_log(&["1bit"], 1000);
        let rows: Vec<Vec<f32>> = (0..4).map(|row| (0..64).map(|column| (row * column) as f32).collect()).collect();
        delta_log.join(0, &[0, 1, 2, 3], &mut [0.0; 4 * 64]);
        let apart = |delta_log: &DeltaLog| -> f32 {
            let flat: Vec<f32> = rows.concat();
            delta_log.rows.iter().zip(&flat).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        for round in 0..40 {
            let positions = delta_log.rows_to_send(if round == 0 { &[0, 1, 2, 3] } else { &[] });
            let mut values: Vec<f32> = positions.iter().flat_map(|position| rows[*position as usize].clone()).collect();
            publish(&mut delta_log, &positions, &mut values);
        }
        assert!(apart(&delta_log) < 1.0, "{}", apart(&delta_log));
    }

    #[test]
    fn delta_log_encodes_only_published_rows() {
        let mut delta_log = delta_log(&["1bit"], 1000);
        assert_eq!(delta_log.needs_after(), None, "no worker reads deltas");
        delta_log.join(7, &[3, 8], &mut [0.0; 2 * 64]);
        assert_eq!((delta_log.needs_after(), delta_log.rows_to_send(&[2, 8, 9])), (Some(7), vec![8]));
    }

    #[test]
    fn delta_log_starts_a_new_sequence_when_a_published_row_is_deleted() {
        let mut delta_log = delta_log(&["1bit"], 1000);
        delta_log.join(0, &[3, 8], &mut [1.0; 2 * 64]);
        publish(&mut delta_log, &[3, 8], &mut (0..128).map(|value| value as f32).collect::<Vec<_>>());
        delta_log.rows_deleted(&[(2, 0), (9, 1)]);
        assert_eq!((delta_log.last(), delta_log.len()), ((1, 1), 2), "neither row is published");
        delta_log.rows_deleted(&[(2, 0), (8, 1)]);
        assert_eq!((delta_log.last(), delta_log.len()), ((2, 1), 0));
        assert_eq!((delta_log.lagging.len(), delta_log.history.len()), (0, 0), "no residual and no delta is left");
        let mut initial = [0.5; 64];
        assert_eq!(delta_log.join(1, &[8], &mut initial), Some((2, 1)));
        assert_eq!(initial, [0.5; 64], "a new reader gets the row as it is");
    }

    #[test]
    fn delta_log_starts_a_new_sequence_after_too_many_rows_or_an_overflow() {
        let mut delta_log = delta_log(&["1bit"], 10);
        delta_log.join(0, &[0, 1, 2, 3, 4, 5, 6, 7], &mut [0.0; 8 * 64]);
        delta_log.join(0, &[5, 6, 7, 8, 9, 10], &mut [0.0; 6 * 64]);
        assert_eq!(delta_log.join(0, &(0..11).collect::<Vec<_>>(), &mut [0.0; 11 * 64]), None, "too many at once");
        assert_eq!((delta_log.sequence, delta_log.len()), (2, 6));
        let mut extreme = vec![f32::MAX; 64];
        delta_log.join(0, &[5], &mut extreme.clone());
        delta_log.rows[..64].fill(-f32::MAX);
        publish(&mut delta_log, &[5], &mut extreme);
        assert_eq!((delta_log.sequence, delta_log.len()), (3, 0));
        assert!(delta_log.after(0).is_none_or(|deltas| deltas.count() == 0));
    }
}
