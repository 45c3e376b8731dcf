//! The names of the codecs of a table. The crate `codec` parses them and does the work.

/// The codecs of a table in both directions, in order. An empty list means no codecs.
///
/// ```
/// use types::Codecs;
/// let codecs = Codecs::both(["keys", "bf16", "lz4"]);
/// assert_eq!(codecs.up, codecs.down);
/// assert!(Codecs::up(["topk=1.5%"]).down.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Codecs {
    /// From workers to shards: keys and pushed values.
    pub up: Vec<String>,
    /// From shards to workers: values that are read.
    pub down: Vec<String>,
}

impl Codecs {
    /// The name for a choice by the measured bandwidth of the link.
    pub const AUTO: &str = "auto";

    /// The same codecs in both directions.
    ///
    /// ```
    /// use types::Codecs;
    ///
    /// let codecs = Codecs::both(["bf16"]);
    /// assert_eq!((codecs.up, codecs.down), (vec!["bf16".to_owned()], vec!["bf16".to_owned()]));
    /// ```
    #[must_use]
    pub fn both<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let up: Vec<String> = names.into_iter().map(Into::into).collect();
        Self { down: up.clone(), up }
    }

    /// Codecs from workers to shards only.
    ///
    /// ```
    /// use types::Codecs;
    ///
    /// let codecs = Codecs::up(["topk=1.5%", "lz4"]);
    /// assert!(codecs.up.len() == 2 && codecs.down.is_empty());
    /// ```
    #[must_use]
    pub fn up<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { up: names.into_iter().map(Into::into).collect(), down: Vec::new() }
    }

    /// A choice by the measured bandwidth of the link; no codecs on a fast one.
    ///
    /// ```
    /// use types::Codecs;
    ///
    /// assert_eq!(Codecs::auto(), Codecs::both([Codecs::AUTO]));
    /// ```
    #[must_use]
    pub fn auto() -> Self {
        Self::both([Self::AUTO])
    }

    /// Whether shards report the active set of an ℓ1 problem, so that workers leave out the other
    /// weights.
    ///
    /// ```
    /// use types::Codecs;
    ///
    /// assert!(Codecs::up(["kkt"]).filters_by_kkt() && !Codecs::auto().filters_by_kkt());
    /// ```
    #[must_use]
    pub fn filters_by_kkt(&self) -> bool {
        self.up.iter().any(|name| name == "kkt")
    }

    /// Replaces the codecs from shards to workers.
    ///
    /// ```
    /// use types::Codecs;
    ///
    /// let codecs = Codecs::up(["topk=1.5%"]).down(["bf16"]);
    /// assert_eq!((codecs.up[0].as_str(), codecs.down[0].as_str()), ("topk=1.5%", "bf16"));
    /// ```
    #[must_use]
    pub fn down<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.down = names.into_iter().map(Into::into).collect();
        self
    }
}
