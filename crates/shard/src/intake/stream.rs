//! The once-only gate: what a shard has finished of one worker's stream.
//!
//! A worker numbers what it sends to a shard 1, 2, 3, … A shard accepts exactly the next number, so
//! that a worker's updates are applied in the order they were made, each once: a lower number was
//! finished before and is acknowledged again, a higher one shows a gap and is asked for again from
//! there. What the gate remembers is one number and the refusals that the worker may still ask
//! about.

use wire::{Field, Reader, Refusal, Refused, WireError};

/// Refusals named in one acknowledgement.
const REFUSALS_AT_ONCE: usize = 1024;

/// Refusals that are kept for a worker that does not say which it has heard. One that keeps within
/// its own bounds has fewer.
const REFUSALS_KEPT: usize = 1 << 18;

/// What to do with an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The next one: do it.
    Fresh,
    /// Finished before: acknowledge it again, do nothing.
    Finished,
    /// Something before it is missing.
    Gap,
}

/// One worker's stream, as far as the shard has finished it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    finished: u64,
    refused: Vec<Refused>,
    /// The number last asked for again, so that a burst behind a gap asks once.
    asked: Option<u64>,
    acknowledge: bool,
}

impl Stream {
    /// Judges an arrival by its number.
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

    /// The worker will never ask about numbers up to `settled` again.
    pub fn settle(&mut self, settled: u64) {
        self.refused.retain(|refused| refused.number > settled);
    }

    /// The last number that is finished.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// There may be something to acknowledge that there was not before.
    pub fn remind(&mut self) {
        self.acknowledge = true;
    }

    /// Whether the stream should be asked for again from the next number: once for each gap.
    pub fn ask(&mut self) -> bool {
        let next = self.finished.saturating_add(1);
        self.asked.replace(next) != Some(next)
    }

    /// What to acknowledge of what is finished up to `through`, if anything is due: one message as
    /// a rule, more where many parts were refused.
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
        // Each goes as far as the refusals that it names.
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
        let (finished, refused) = (Field::get(input)?, Field::get(input)?);
        Ok(Self { finished, refused, asked: None, acknowledge: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_judged_by_number() {
        let mut stream = Stream::default();
        // (number, verdict): the fresh ones are finished at once.
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
    fn a_refusal_is_repeated_until_it_is_settled() {
        let mut stream = Stream::default();
        stream.finish(Some(Refusal::Expelled));
        stream.finish(None);
        let said = |stream: &mut Stream| -> Vec<(u64, usize)> {
            stream.take_acknowledgements(u64::MAX).iter().map(|(through, refused)| (*through, refused.len())).collect()
        };
        assert_eq!(said(&mut stream), [(2, 1)]);
        assert_eq!(said(&mut stream), [], "nothing new to say");
        assert_eq!(stream.judge(1), Verdict::Finished);
        assert_eq!(said(&mut stream), [(2, 1)], "asked again, said again");
        stream.settle(1);
        stream.judge(2);
        assert_eq!(said(&mut stream), [(2, 0)]);
    }

    #[test]
    fn many_refusals_are_named_in_several_messages_that_follow_each_other() {
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
    fn refusals_that_nobody_settles_are_bounded() {
        let mut stream = Stream::default();
        (0..REFUSALS_KEPT + 10).for_each(|_| stream.finish(Some(Refusal::Expelled)));
        assert!(stream.refused.len() <= REFUSALS_KEPT);
        let newest = stream.refused.last().map(|refused| refused.number);
        assert_eq!(newest, Some(stream.finished()), "the newest are kept");
    }

    #[test]
    fn a_gap_is_asked_for_once() {
        let mut stream = Stream::default();
        assert!(stream.ask());
        assert!(!stream.ask());
        stream.finish(None);
        assert!(stream.ask());
    }
}
