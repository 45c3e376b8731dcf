//! The codecs of a table: parsed from its spec and checked against its policies.

use std::fmt;

use types::{CacheSpec, Codecs, Consistency, NumberType, SpecError, TableSpec, UpdaterSpec};

use crate::pipeline::{Pipeline, PipelineError, PipelineWarning};

/// The codecs of one direction.
#[derive(Clone, Debug, PartialEq)]
pub enum CodecChoice {
    /// The codecs that the spec names.
    Pipeline(Pipeline),
    /// The worker chooses by the measured bandwidth of the link.
    Auto,
}

impl CodecChoice {
    /// The named pipeline; `None` for `auto`.
    #[must_use]
    pub fn pipeline(&self) -> Option<&Pipeline> {
        match self {
            Self::Pipeline(pipeline) => Some(pipeline),
            Self::Auto => None,
        }
    }
}

impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pipeline(pipeline) if pipeline.codecs().is_empty() => f.write_str("none"),
            Self::Pipeline(pipeline) => pipeline.fmt(f),
            Self::Auto => f.write_str(Codecs::AUTO),
        }
    }
}

/// The codecs of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableCodecs {
    /// From workers to shards.
    pub up: CodecChoice,
    /// From shards to workers.
    pub down: CodecChoice,
    /// A combination that works, but badly.
    pub warning: Option<PipelineWarning>,
}

impl TableCodecs {
    /// Parses the codecs of a spec, and checks that they go together and with the table.
    ///
    /// ```
    /// use types::{Codecs, TableSpec};
    /// let spec = TableSpec::dense("layer", 10, 100).codecs(Codecs::up(["1bit"]));
    /// assert!(codec::TableCodecs::of(&spec).is_ok());
    /// let error = codec::TableCodecs::of(&spec.codecs(Codecs::both(["1bit"]))).unwrap_err();
    /// assert!(error.to_string().contains("combine by clock"));
    /// ```
    pub fn of(spec: &TableSpec) -> Result<Self, SpecError> {
        let refuse = |problem: String, remedy: &'static str| SpecError { table: spec.name.clone(), problem, remedy };
        let read = |names: &[String]| match names {
            [name] if name == Codecs::AUTO => Ok(CodecChoice::Auto),
            names => Pipeline::parse(names.iter().map(String::as_str)).map(CodecChoice::Pipeline),
        };
        let wrong = |error: PipelineError| refuse(error.to_string(), "name other codecs, or none");
        let up = read(&spec.codecs.up).map_err(wrong)?;
        let down = read(&spec.codecs.down).map_err(wrong)?;
        let mut warning = None;
        if let Some(pipeline) = up.pipeline() {
            warning = pipeline.check(spec.number, &spec.updater).map_err(wrong)?;
            if pipeline.filters_by_kkt() && !matches!(spec.updater, UpdaterSpec::Proximal { .. }) {
                let problem = format!("kkt works with the updater proximal only, and this table uses {}", spec.updater);
                return Err(refuse(problem, "leave kkt out, or use the updater proximal"));
            }
            if pipeline.skips().is_some() && (spec.consistency.bound().is_some() || spec.cache == CacheSpec::Off) {
                let problem = "skip answers pulls from cached rows: it needs a cache, and a bound on slack already lets \
                               the cache answer all it may";
                return Err(refuse(problem.into(), "use skip on an unbounded table with a cache"));
            }
        }
        if let Some(pipeline) = down.pipeline() {
            pipeline.check(spec.number, &UpdaterSpec::Sum).map_err(wrong)?;
            if pipeline.skips().is_some() {
                return Err(refuse("skip leaves out pulls, which go upward".into(), "name it among the codecs upward"));
            }
            if pipeline.is_lossy() && !Self::can_step(spec) {
                let problem = "a lossy codec downward sends deltas of each clock, which caches add up".into();
                return Err(refuse(
                    problem,
                    "bound the slack, combine by clock and give it .cached(rows), or use lossy codecs upward only",
                ));
            }
        }
        Ok(Self { up, down, warning })
    }

    /// No codecs in either direction.
    #[must_use]
    pub fn none() -> Self {
        Self {
            up: CodecChoice::Pipeline(Pipeline::default()),
            down: CodecChoice::Pipeline(Pipeline::default()),
            warning: None,
        }
    }

    /// Whether shards can send deltas instead of rows: rows must change clock by clock, and workers
    /// must cache rows to which they add the deltas.
    #[must_use]
    pub fn can_step(spec: &TableSpec) -> bool {
        matches!(spec.consistency, Consistency::Bounded { eager: false, .. })
            && spec.combine.holds_clocks()
            && spec.cache != CacheSpec::Off
            && spec.number == NumberType::F32
            // Rows of these updaters may read differently although no push changed them.
            && !matches!(spec.updater, UpdaterSpec::Ftrl { .. } | UpdaterSpec::Custom { .. })
    }
}
