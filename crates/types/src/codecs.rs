//! Which codecs shrink a table's messages, by name. The crate `codec` knows the names.

/// The codecs of a table in both directions, in order. Nothing is changed where a list is empty.
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
    /// From shards to workers: what is read.
    pub down: Vec<String>,
}

impl Codecs {
    /// The name that leaves the choice to what is measured of the link.
    pub const AUTO: &str = "auto";

    /// The same both ways.
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

    /// From workers to shards alone.
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

    /// Whatever the measured link makes worth while: nothing on a fast one.
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

    /// Whether shards say which coordinates of an ℓ1 problem are active, so that workers leave out
    /// the others.
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

    /// With others from shards to workers.
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
