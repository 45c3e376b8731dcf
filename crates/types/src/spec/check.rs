//! Checks of a table's spec when the table is made: whether its policies fit each other, and
//! whether two specs are the same.

use super::{CacheSpec, Initial, NumberType, PART_BYTES, TableShape, TableSpec};
use crate::limits::{NAME_BYTES, POLICY_ITEMS};
use crate::{Consistency, UpdaterSpec};
use std::fmt;

/// Why a spec cannot be a table.
///
/// ```
/// use types::TableSpec;
///
/// let error = TableSpec::dense("t", 0, 1).check().expect_err("a table of nothing");
/// assert_eq!((error.problem.as_str(), error.remedy), ("it has no rows", "give it at least one row"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The table's name.
    pub table: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table '{}' cannot be made: {}; {}", self.table, self.problem, self.remedy)
    }
}

impl std::error::Error for SpecError {}

impl TableSpec {
    /// Checks that the policies fit the shape and each other. Every refusal says what to change.
    ///
    /// ```
    /// use types::TableSpec;
    ///
    /// assert!(TableSpec::sparse("t", 1).check().is_ok());
    /// let error = TableSpec::sparse("t", 0).check().expect_err("rows of nothing");
    /// assert_eq!(error.to_string(), "table 't' cannot be made: its rows are 0 numbers wide; give it a width of at least 1");
    /// ```
    pub fn check(&self) -> Result<(), SpecError> {
        let refuse =
            |problem: String, remedy: &'static str| Err(SpecError { table: self.name.clone(), problem, remedy });
        if self.name.is_empty() || self.name.len() > NAME_BYTES {
            return refuse(format!("its name has {} bytes", self.name.len()), "give it a name of 1 to 255 bytes");
        }
        if let Some(problem) = self.long_list() {
            return refuse(problem, "use at most 64 of them, with names of at most 255 bytes");
        }
        if self.width == 0 {
            return refuse("its rows are 0 numbers wide".into(), "give it a width of at least 1");
        }
        if self.row_bytes() > PART_BYTES {
            let problem = format!("a row of {} {} is larger than a part of 1 MiB", self.width, self.number);
            return refuse(problem, "store it as several narrower rows");
        }
        match self.shape {
            TableShape::Dense { rows: 0 } => return refuse("it has no rows".into(), "give it at least one row"),
            TableShape::Dense { rows } if rows >= u64::from(u32::MAX) => {
                return refuse(format!("{rows} dense rows are more than a table can have"), "make it a sparse table");
            }
            TableShape::Sparse { max_rows, .. } if max_rows == 0 || max_rows >= u64::from(u32::MAX) => {
                return refuse(format!("max_rows is {max_rows}"), "choose 1 to 4294967294 rows a shard");
            }
            _ => {}
        }
        if self.number == NumberType::I64 {
            if !matches!(self.updater, UpdaterSpec::Sum | UpdaterSpec::Assign | UpdaterSpec::Custom { .. }) {
                return refuse(format!("{} needs real numbers, not i64", self.updater), "use sum or assign, or f32");
            }
            if self.initial != Initial::Zero {
                return refuse("a random start needs real numbers, not i64".into(), "start from zero, or use f32");
            }
            if self.combine.takes_mean() {
                return refuse("a mean of i64 is not an i64".into(), "combine by sum, or use f64");
            }
        }
        if let UpdaterSpec::Adam { beta1, beta2, .. } = self.updater
            && (beta1 >= 1.0 || beta2 >= 1.0)
        {
            return refuse(format!("adam's betas are {beta1} and {beta2}"), "choose both below 1");
        }
        if matches!(self.updater, UpdaterSpec::Ftrl { .. }) && self.combine.takes_mean() {
            return refuse("ftrl weighs its ℓ1 by examples, so it needs sums".into(), "combine by sum");
        }
        if matches!(self.updater, UpdaterSpec::Proximal { .. }) {
            if !self.width.is_multiple_of(2) {
                return refuse("proximal needs a gradient for each weight".into(), "give it an even width");
            }
            if self.combine.takes_mean() {
                return refuse(
                    "proximal weighs its ℓ1 against the whole loss, so it needs sums".into(),
                    "combine by sum",
                );
            }
        }
        if self.codecs.filters_by_kkt()
            && !(matches!(self.updater, UpdaterSpec::Proximal { .. }) && self.combine.holds_clocks())
        {
            let problem = "kkt needs the sum of all workers' gradients, and the updater proximal";
            return refuse(problem.into(), "use updater proximal and combine by clock, or leave kkt out");
        }
        if let Some(setting) = self.bad_setting() {
            return refuse(setting, "use a finite number that is not negative");
        }
        if let (Initial::Uniform { scale, .. } | Initial::Normal { scale, .. }, UpdaterSpec::Ftrl { .. }) =
            (self.initial, &self.updater)
            && scale != 0.0
        {
            return refuse("ftrl computes its weights from sums of gradients".into(), "start from zero");
        }
        let skips = self.codecs.up.iter().any(|name| name.starts_with("skip"));
        if matches!(self.consistency, Consistency::Unbounded | Consistency::Delay { .. })
            && self.cache != CacheSpec::Off
            && !skips
        {
            let problem = format!("{} admits any copy, so a cache would never be refreshed", self.consistency);
            return refuse(problem, "bound the slack, switch the cache off, or skip only some pulls, as with skip=50%");
        }
        if self.consistency.is_eager() && matches!(self.updater, UpdaterSpec::Ftrl { .. }) {
            let problem =
                "ftrl's weights change with every example, so a refresh of changed rows would miss the others";
            return refuse(problem.into(), "use slack without eager");
        }
        if self.consistency.is_eager() && self.cache == CacheSpec::Off {
            return refuse("eager refreshes have no cache to go to".into(), "give it .cached(rows)");
        }
        Ok(())
    }

    /// The first policy in which two specs of the same name differ, in words; `None` if they are
    /// the same.
    ///
    /// ```
    /// use types::TableSpec;
    ///
    /// let spec = TableSpec::dense("t", 10, 1);
    /// assert_eq!(spec.difference(&spec.clone()), None);
    /// assert_eq!(spec.difference(&TableSpec::dense("t", 10, 2)).as_deref(), Some("width is 1 in one and 2 in the other"));
    /// ```
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let says = |what: &str, ours: &dyn fmt::Debug, theirs: &dyn fmt::Debug| {
            let ours = format!("{ours:?}");
            let theirs = format!("{theirs:?}");
            (ours != theirs).then(|| format!("{what} is {ours} in one and {theirs} in the other"))
        };
        says("number", &self.number, &other.number)
            .or_else(|| says("shape", &self.shape, &other.shape))
            .or_else(|| says("width", &self.width, &other.width))
            .or_else(|| says("initial", &self.initial, &other.initial))
            .or_else(|| says("consistency", &self.consistency, &other.consistency))
            .or_else(|| says("combine", &self.combine, &other.combine))
            .or_else(|| says("updater", &self.updater, &other.updater))
            .or_else(|| says("cache", &self.cache, &other.cache))
            .or_else(|| says("codecs", &self.codecs, &other.codecs))
    }

    /// What exceeds the limits of names and lists, in words.
    fn long_list(&self) -> Option<String> {
        let names = |names: &[String]| (names.len(), names.iter().map(String::len).max().unwrap_or(0));
        let updater = match &self.updater {
            UpdaterSpec::Custom { name, settings } => (settings.len(), name.len()),
            UpdaterSpec::Sum
            | UpdaterSpec::Assign
            | UpdaterSpec::Sgd { .. }
            | UpdaterSpec::Momentum { .. }
            | UpdaterSpec::Adagrad { .. }
            | UpdaterSpec::Adam { .. }
            | UpdaterSpec::Proximal { .. }
            | UpdaterSpec::Ftrl { .. } => (0, 0),
        };
        let lists = [
            ("codecs for pushes", names(&self.codecs.up)),
            ("codecs for pulls", names(&self.codecs.down)),
            ("settings of its updater", updater),
        ];
        let too_long = lists.into_iter().find(|(_, (items, name))| *items > POLICY_ITEMS || *name > NAME_BYTES);
        too_long.map(|(what, (items, name))| format!("it has {items} {what}, with a name of {name} bytes"))
    }

    fn bad_setting(&self) -> Option<String> {
        let settings: &[(&str, f64)] = match &self.updater {
            UpdaterSpec::Sum | UpdaterSpec::Assign | UpdaterSpec::Custom { .. } => &[],
            UpdaterSpec::Sgd { rate } => &[("rate", *rate)],
            UpdaterSpec::Momentum { rate, momentum } => &[("rate", *rate), ("momentum", *momentum)],
            UpdaterSpec::Adagrad { rate, epsilon } => &[("rate", *rate), ("epsilon", *epsilon)],
            UpdaterSpec::Adam { rate, beta1, beta2, epsilon } => {
                &[("rate", *rate), ("beta1", *beta1), ("beta2", *beta2), ("epsilon", *epsilon)]
            }
            UpdaterSpec::Proximal { rate, l1 } => &[("rate", *rate), ("l1", *l1)],
            UpdaterSpec::Ftrl { rate, beta, l1, l2 } => &[("rate", *rate), ("beta", *beta), ("l1", *l1), ("l2", *l2)],
        };
        let initial = match self.initial {
            Initial::Zero => 0.0,
            Initial::Uniform { scale, .. } | Initial::Normal { scale, .. } => scale,
        };
        let bad = |&&(_, value): &&(&str, f64)| !value.is_finite() || value < 0.0;
        let initial = ("scale", initial);
        settings
            .iter()
            .chain([&initial])
            .find(|entry| bad(entry))
            .map(|(name, value)| format!("{name} of {} is {value}", self.updater))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codecs, Combine, Reduce};

    #[test]
    fn specs_that_do_not_fit_are_refused_with_a_remedy() {
        let sparse = || TableSpec::sparse("t", 1);
        // (spec, a word its refusal must say, or None where it is fine)
        let proximal = || TableSpec::sparse("t", 2).updater(UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 });
        let custom = |name: usize, settings: usize| UpdaterSpec::Custom {
            name: "u".repeat(name),
            settings: vec![Default::default(); settings],
        };
        let cases: [(TableSpec, Option<&str>); 24] = [
            (sparse(), None),
            (TableSpec::sparse(&"n".repeat(NAME_BYTES), 1), None),
            (TableSpec::sparse(&"n".repeat(NAME_BYTES + 1), 1), Some("its name has 256 bytes")),
            (sparse().codecs(Codecs::up(vec!["bf16"; POLICY_ITEMS + 1])), Some("65 codecs for pushes")),
            (sparse().codecs(Codecs::both(["c".repeat(NAME_BYTES + 1)])), Some("256 bytes")),
            (sparse().updater(custom(NAME_BYTES, POLICY_ITEMS)), None),
            (sparse().updater(custom(NAME_BYTES + 1, 0)), Some("256 bytes")),
            (sparse().updater(custom(1, POLICY_ITEMS + 1)), Some("65 settings")),
            (TableSpec::dense("t", 10, 3), None),
            (TableSpec::sparse("", 1), Some("name")),
            (TableSpec::sparse("t", 0), Some("width")),
            (TableSpec::sparse("t", 1 << 19), Some("narrower")),
            (TableSpec::dense("t", 0, 1), Some("no rows")),
            (sparse().max_rows(0), Some("max_rows")),
            (sparse().number(NumberType::I64).updater(UpdaterSpec::Sgd { rate: 0.1 }), Some("i64")),
            (sparse().number(NumberType::I64).combine(Combine::Clock(Reduce::Mean)), Some("mean")),
            (sparse().updater(UpdaterSpec::Sgd { rate: f64::NAN }), Some("rate")),
            (sparse().updater(UpdaterSpec::Sgd { rate: -1.0 }), Some("rate")),
            (sparse().consistency(Consistency::Unbounded).cached(10), Some("refreshed")),
            (sparse().consistency(Consistency::Bounded { slack: 1, eager: true }), Some("cached")),
            (sparse().consistency(Consistency::Bounded { slack: 1, eager: true }).cached(9), None),
            (sparse().codecs(Codecs::up(["kkt"])), Some("proximal")),
            (proximal().codecs(Codecs::up(["kkt"])), Some("combine by clock")),
            (proximal().codecs(Codecs::up(["kkt"])).combine(Combine::Clock(Reduce::Sum)), None),
        ];
        for (spec, expected) in cases {
            match (spec.check(), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(word)) => assert!(error.to_string().contains(word), "{error} lacks '{word}'"),
                (result, _) => panic!("{spec:?} gave {result:?}"),
            }
        }
    }
}
