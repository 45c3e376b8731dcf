//! One worker's stream at a shard: the last finished sequence number and the refusals.
//!
//! A worker numbers what it sends to a shard 1, 2, 3, … The shard accepts exactly the next number,
//! so a worker's updates are applied in the order they were made, each once. An item is *finished*
//! when the shard has applied it or refused it for good. A lower number was finished before, and
//! the shard acknowledges it again. A higher one shows a gap, and the shard asks the worker to
//! resend from there. The stream remembers one number and the refusals that the worker may not know
//! yet.

use wire::{Field, Reader, Refusal, Refused, WireError};

/// At most this many refusals are in one acknowledgement.
const REFUSALS_AT_ONCE: usize = 1024;

/// At most this many refusals are kept for a worker that does not settle them. A correct worker has
/// fewer.
const REFUSALS_KEPT: usize = 1 << 18;

/// What to do with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next item: handle it.
    Fresh,
    /// It was finished before: acknowledge it again.
    Finished,
    /// Items before it are missing.
    Gap,
}

/// One worker's stream, as far as the shard has finished it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    /// The last finished number.
    finished: u64,
    /// Refusals that the worker has not settled, by rising number.
    refused: Vec<Refused>,
    /// The number that a resend was last asked from, so that many items behind a gap ask once.
    asked: Option<u64>,
    /// Whether an acknowledgement is due.
    acknowledge: bool,
}

impl Stream {
    /// Judges an item by its number.
    pub fn judge(&mut self, number: u64) -> Verdict {
        if number <= self.finished {
            self.acknowledge = true;
            Verdict::Finished
        } else if number == self.finished.saturating_add(1) {
            Verdict::Fresh
        } else {
            Verdict::Gap
        }
    }

    /// The next number is finished: applied, or refused for good.
    pub fn finish(&mut self, refusal: Option<Refusal>) {
        self.finished = self.finished.saturating_add(1);
        self.asked = None;
        self.acknowledge = true;
        if let Some(refusal) = refusal {
            if self.refused.len() == REFUSALS_KEPT {
                self.refused.drain(..REFUSALS_KEPT / 2);
            }
            self.refused.push(Refused { number: self.finished, refusal });
        }
    }

    /// The worker knows the outcome of items up to `settled`: forgets their refusals.
    pub fn settle(&mut self, settled: u64) {
        self.refused.retain(|refused| refused.number > settled);
    }

    /// The last finished number.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Makes an acknowledgement due.
    pub fn remind(&mut self) {
        self.acknowledge = true;
    }

    /// Whether to ask the worker to resend from the next number: true once for each gap.
    pub fn ask(&mut self) -> bool {
        let next = self.finished.saturating_add(1);
        self.asked.replace(next) != Some(next)
    }

    /// The acknowledgements of items up to `through`, if any is due. Each is a pair: the last
    /// sequence number that it acknowledges, and the refusals up to it that no earlier pair has.
    /// Usually there is one pair; there are more if many items were refused.
    pub fn take_acknowledgements(&mut self, through: u64) -> Vec<(u64, Vec<Refused>)> {
        if !std::mem::take(&mut self.acknowledge) {
            return Vec::new();
        }
        let finished = self.finished.min(through);
        let refused: Vec<Refused> = self.refused.iter().filter(|refused| refused.number <= finished).cloned().collect();
        let mut acknowledgements: Vec<(u64, Vec<Refused>)> =
            refused.chunks(REFUSALS_AT_ONCE).map(|refused| (0, refused.to_vec())).collect();
        if acknowledgements.is_empty() {
            acknowledgements.push((0, Vec::new()));
        }
        // Each acknowledges up to the item before the next one's first refusal.
        for index in 0..acknowledgements.len() {
            let next = acknowledgements.get(index + 1).and_then(|(_, refused)| refused.first());
            acknowledgements[index].0 = next.map_or(finished, |refused| refused.number - 1);
        }
        acknowledgements
    }
}

impl Field for Stream {
    fn put(&self, out: &mut Vec<u8>) {
        self.finished.put(out);
        self.refused.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let finished = Field::get(input)?;
        let refused = Field::get(input)?;
        Ok(Self { finished, refused, asked: None, acknowledge: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_judges_items_by_number() {
        let mut stream = Stream::default();
        // (number, verdict); a fresh item is finished at once
        let cases = [
            (1, Verdict::Fresh),
            (1, Verdict::Finished),
            (3, Verdict::Gap),
            (2, Verdict::Fresh),
            (3, Verdict::Fresh),
            (2, Verdict::Finished),
            (9, Verdict::Gap),
        ];
        for (number, expected) in cases {
            let verdict = stream.judge(number);
            assert_eq!(verdict, expected, "number {number}");
            if verdict == Verdict::Fresh {
                stream.finish(None);
            }
        }
    }

    #[test]
    fn stream_repeats_a_refusal_until_it_is_settled() {
        let mut stream = Stream::default();
        stream.finish(Some(Refusal::Expelled));
        stream.finish(None);
        let said = |stream: &mut Stream| -> Vec<(u64, usize)> {
            stream.take_acknowledgements(u64::MAX).iter().map(|(through, refused)| (*through, refused.len())).collect()
        };
        assert_eq!(said(&mut stream), [(2, 1)]);
        assert_eq!(said(&mut stream), [], "no acknowledgement is due");
        assert_eq!(stream.judge(1), Verdict::Finished);
        assert_eq!(said(&mut stream), [(2, 1)], "a repeated item is acknowledged again");
        stream.settle(1);
        stream.judge(2);
        assert_eq!(said(&mut stream), [(2, 0)]);
    }

    #[test]
    fn stream_splits_many_refusals_over_consecutive_acknowledgements() {
        let mut stream = Stream::default();
        for number in 0..3 * REFUSALS_AT_ONCE {
            stream.finish((number % 2 == 0).then_some(Refusal::Expelled));
        }
        let acknowledgements = stream.take_acknowledgements(u64::MAX);
        assert_eq!(acknowledgements.len(), 2);
        let mut from = 0;
        for (through, refused) in &acknowledgements {
            assert!(refused.iter().all(|refused| refused.number > from && refused.number <= *through));
            from = *through;
        }
        assert_eq!(from, 3 * REFUSALS_AT_ONCE as u64);
    }

    #[test]
    fn stream_bounds_unsettled_refusals() {
        let mut stream = Stream::default();
        (0..REFUSALS_KEPT + 10).for_each(|_| stream.finish(Some(Refusal::Expelled)));
        assert!(stream.refused.len() <= REFUSALS_KEPT);
        let newest = stream.refused.last().map(|refused| refused.number);
        assert_eq!(newest, Some(stream.finished()), "the newest are kept");
    }

    #[test]
    fn stream_asks_once_for_each_gap() {
        let mut stream = Stream::default();
        assert!(stream.ask());
        assert!(!stream.ask());
        stream.finish(None);
        assert!(stream.ask());
    }
}
