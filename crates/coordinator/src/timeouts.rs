//! Time-outs of the coordinator. Each follows from the failure timeout, which is a setting, and
//! from measurements.

use types::{Measured, NodeId, Span, Time};
use wire::Timeout;

/// The coordinator asks again for an answer after this long at most, and while nothing is measured.
pub(crate) const ASK_AGAIN_AFTER: Span = Span::from_millis(500);

/// A worker's step time counts after this many measured clocks: the first ones may include its
/// preparations.
const ENOUGH_CLOCKS: u64 = 8;
/// A waiting worker is told whom it waits for after this long, unless the slowest worker takes
/// longer for a clock.
pub(crate) const NOTICE_AFTER: Span = Span::from_secs(3);

/// The failure timeout, and how long nodes take to answer.
pub(crate) struct Timeouts {
    /// A node that is silent for this long is lost.
    failure_timeout: Span,
    is_elastic: bool,
    /// How long nodes take to answer.
    answers: Measured,
    /// When the coordinator last looked for silent nodes.
    looked: Option<Time>,
}

impl Timeouts {
    pub fn new(failure_timeout: Span, is_elastic: bool) -> Self {
        Self { failure_timeout, is_elastic, answers: Measured::default(), looked: None }
    }

    pub fn failure_timeout(&self) -> Span {
        self.failure_timeout
    }

    /// The coordinator looks for silent nodes now. Returns how long it has not run since it last
    /// looked, if that is longer than half the failure timeout: its process was stopped, starved or
    /// suspended. No node is to blame for that time.
    pub fn slept(&mut self, now: Time) -> Option<Span> {
        let since = now.since(self.looked.replace(now).unwrap_or(now));
        (since > Span(self.failure_timeout.0 / 2)).then_some(since)
    }

    /// Notes how long a node took to answer.
    pub fn observe_answer(&mut self, took: Span) {
        self.answers.observe(took);
    }

    /// How long a waiting worker waits before it is told whom it waits for, and between repeats:
    /// until the slowest worker is late. `steps` is how long each worker takes for a clock. Returns
    /// also the measurement that decided.
    pub fn notice_after(&self, steps: impl Iterator<Item = Measured>) -> (Span, Option<Measured>) {
        let least = NOTICE_AFTER.min(self.finding());
        let most = least.max(Span(self.failure_timeout.0.saturating_mul(10)));
        let slowest = steps.filter(|step| step.count >= ENOUGH_CLOCKS).max_by_key(|step| step.limit(least, most));
        (slowest.map_or(least, |step| step.limit(least, most)), slowest)
    }

    /// The coordinator asks again after this long: when an answer is late, by the measured time of
    /// answers.
    pub fn ask_again_after(&self) -> Span {
        let most = ASK_AGAIN_AFTER.min(Span(self.failure_timeout.0 / 4));
        self.answers.limit(Span(most.0 / 10), most)
    }

    /// How long nodes may take to find a new coordinator: they may try other addresses first. Their
    /// failure timeouts begin after it.
    pub fn finding(&self) -> Span {
        Span((self.failure_timeout.0 / 2).saturating_mul(3))
    }

    /// A node that is silent for this long counts as lost. For a server, this is longer than its
    /// serving lease, with a margin for clocks that run apart.
    pub fn promotion_delay(&self, node: NodeId) -> Span {
        match node {
            NodeId::Server(_) if self.is_elastic => types::promotion_delay(self.failure_timeout),
            NodeId::Server(_) | NodeId::Worker(_) | NodeId::Coordinator => self.failure_timeout,
        }
    }

    /// How long a serving lease lasts. None in a static run, where no server takes over shards.
    pub fn serving_lease(&self) -> Option<Span> {
        self.is_elastic.then(|| types::serving_lease(self.failure_timeout))
    }

    /// How long a server that was told to leave waits for another to join, if fewer servers than
    /// replicas would be left.
    pub fn waits_for_others(&self) -> Span {
        Span(self.failure_timeout.0.saturating_mul(4))
    }

    /// The least time between two rounds of moving shards to even out servers. Shards that move
    /// count for their old server until they are backfilled on the new one.
    pub fn levels_after(&self) -> Span {
        Span(self.failure_timeout.0.saturating_mul(10))
    }

    /// All time-outs with their reasons, for `slackwater status`.
    pub fn list(&self, steps: impl Iterator<Item = Measured>) -> Vec<Timeout> {
        let given = |what: &str, value: Span, why: &str| Timeout::new(what, value, why, None);
        let measured = (self.answers.count > 0).then_some(self.answers);
        let asks = "mean and four deviations of the time in which nodes answer, at most a quarter of the failure timeout or 0.5 s, whichever is less, and at least a tenth of that";
        let mut all = vec![Timeout::new("the coordinator asks again", self.ask_again_after(), asks, measured)];
        let (notice, slowest) = self.notice_after(steps);
        let why = "mean and four deviations of the slowest worker's clocks, between 3 s (or 1.5 failure timeouts) and ten failure timeouts";
        all.push(Timeout::new("a waiting worker is told whom it waits for", notice, why, slowest));
        let Some(serving_lease) = self.serving_lease() else {
            all.push(given(
                "a silent node is lost, and the run with it",
                self.failure_timeout,
                "the failure timeout, a setting",
            ));
            return all;
        };
        all.extend([
            given("a silent worker is given up", self.failure_timeout, "the failure timeout, a setting"),
            given(
                "a server stops answering after its last acknowledged heartbeat",
                serving_lease,
                "the serving lease: four fifths of the failure timeout, never measured, because others rely on it",
            ),
            given(
                "a silent server is given up",
                self.promotion_delay(NodeId::Server(0)),
                "the failure timeout and a quarter, because clocks differ",
            ),
            given("nodes may look for a new coordinator", self.finding(), "1.5 failure timeouts"),
            given("shards may be moved again to even out servers", self.levels_after(), "ten failure timeouts"),
            given(
                "a server that was told to leave waits for another to join",
                self.waits_for_others(),
                "four failure timeouts, if fewer servers than replicas would be left",
            ),
        ]);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    #[test]
    fn a_server_of_an_elastic_run_is_given_up_later_than_the_failure_timeout() {
        let quarter_more = Span(SECOND.0 / 4 * 5);
        let cases = [
            (true, NodeId::Server(3), quarter_more),
            (true, NodeId::Worker(3), SECOND),
            (false, NodeId::Server(3), SECOND),
            (false, NodeId::Worker(3), SECOND),
        ];
        for (is_elastic, node, delay) in cases {
            let timeouts = Timeouts::new(SECOND, is_elastic);
            assert_eq!(timeouts.promotion_delay(node), delay, "{node}, elastic: {is_elastic}");
            assert_eq!(timeouts.serving_lease().is_some(), is_elastic);
        }
    }

    #[test]
    fn coordinator_knows_for_how_long_it_did_not_run() {
        let mut timeouts = Timeouts::new(SECOND, true);
        let looks = [0, 400, 900, 1_500, 1_600, 9_600].map(|millis| Time(0) + Span::from_millis(millis));
        let slept = looks.map(|look| timeouts.slept(look));
        let expected = [None, None, None, Some(600), None, Some(8_000)];
        assert_eq!(slept, expected.map(|millis| millis.map(Span::from_millis)));
    }

    #[test]
    fn asking_again_follows_the_answers_within_bounds() {
        let mut timeouts = Timeouts::new(SECOND, true);
        let quarter = Span(SECOND.0 / 4);
        assert_eq!(timeouts.ask_again_after(), quarter, "nothing is measured");
        (0..50).for_each(|_| timeouts.observe_answer(Span(1)));
        assert_eq!(timeouts.ask_again_after(), Span(quarter.0 / 10));
        (0..50).for_each(|_| timeouts.observe_answer(SECOND));
        assert_eq!(timeouts.ask_again_after(), quarter);
    }

    #[test]
    fn notices_follow_the_slowest_worker_once_it_is_measured_enough() {
        let timeouts = Timeouts::new(Span::from_secs(4), true);
        let step = |seconds: u64, count: u64| {
            let mut step = Measured::default();
            (0..count).for_each(|_| step.observe(Span::from_secs(seconds)));
            step
        };
        // (seconds and count of each worker's clocks; after how long waiting workers are told)
        let cases: [(&[(u64, u64)], u64); 4] =
            [(&[], 3), (&[(1, 50)], 3), (&[(1, 50), (9, 7)], 3), (&[(1, 50), (100, 50)], 40)];
        for (steps, seconds) in cases {
            let (after, _) = timeouts.notice_after(steps.iter().map(|(seconds, count)| step(*seconds, *count)));
            assert_eq!(after, Span::from_secs(seconds), "{steps:?}");
        }
    }
}
