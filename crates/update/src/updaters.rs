//! [`Updaters`] makes the updater that a table's spec names: a built-in one, or one that the
//! program registered.

use crate::adagrad::Adagrad;
use crate::adam::Adam;
use crate::ftrl::Ftrl;
use crate::momentum::Momentum;
use crate::number::Real;
use crate::proximal::Proximal;
use crate::stateless::{Assign, Sgd, Sum};
use crate::{Number, Updater};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use types::{NumberType, TableSpec, UpdaterSpec};

/// Makes updaters from specs. The built-in updaters are always there; programs register their own
/// by name.
///
/// To add your own: implement [`Updater`] for one row and its gradient, register it for the number
/// types that it supports, and name it in the table's spec. Every server must register it before
/// the table is made.
///
/// ```
/// use types::UpdaterSpec;
/// use update::{Updaters, Slots, UpdateStep, Updater};
///
/// /// w = max(w, g): the largest value that any worker has pushed, never below a floor.
/// struct Largest { floor: f32 }
///
/// impl Updater<f32> for Largest {
///     fn state(&self, _width: usize) -> usize {
///         0
///     }
///     fn update(&self, _: &UpdateStep, _width: usize, row: &mut [f32], gradient: &[f32]) {
///         for (weight, &value) in row.iter_mut().zip(gradient) {
///             *weight = weight.max(value).max(self.floor);
///         }
///     }
/// }
///
/// let mut updaters = Updaters::builtin();
/// updaters.register::<f32>("largest", |settings| {
///     Box::new(Largest { floor: settings.first().map_or(0.0, |&floor| floor as f32) })
/// });
///
/// let spec = UpdaterSpec::Custom { name: "largest".into(), settings: vec![1.0] };
/// let largest = updaters.make::<f32>(&spec).expect("it was registered above");
/// let mut slab = [0.0; 3];
/// largest.update_rows(&UpdateStep::default(), 1, &mut slab, Slots::List(&[2, 0]), &[5.0, -5.0]);
/// assert_eq!(slab, [1.0, 0.0, 5.0]);
/// ```
#[derive(Clone, Default)]
pub struct Updaters {
    pub(crate) f32: Makers<f32>,
    pub(crate) f64: Makers<f64>,
    pub(crate) i64: Makers<i64>,
}

/// Functions that make a registered updater from its settings, by name, for one number type. They
/// are shared, because every shard's thread holds a copy of this map.
pub type Makers<T> = BTreeMap<String, Arc<dyn Fn(&[f64]) -> Box<dyn Updater<T>> + Send + Sync>>;

impl Updaters {
    /// Only the built-in updaters.
    ///
    /// ```
    /// use types::UpdaterSpec;
    /// use update::Updaters;
    ///
    /// let updaters = Updaters::builtin();
    /// assert!(updaters.make::<f32>(&UpdaterSpec::Sum).is_ok());
    /// assert!(updaters.make::<i64>(&UpdaterSpec::Sgd { rate: 0.1 }).is_err());   // it needs real numbers
    /// ```
    #[must_use]
    pub fn builtin() -> Self {
        Self::default()
    }

    /// Registers an updater for tables of `T`; `make` gets the settings of the spec. It replaces an
    /// earlier one of the same name.
    ///
    /// ```
    /// use types::UpdaterSpec;
    /// use update::{Updaters, UpdateStep, Updater};
    ///
    /// struct Sign;
    /// impl Updater<f32> for Sign {
    ///     fn state(&self, _width: usize) -> usize { 0 }
    ///     fn update(&self, _: &UpdateStep, _width: usize, row: &mut [f32], gradient: &[f32]) {
    ///         row.iter_mut().zip(gradient).for_each(|(weight, value)| *weight -= 0.1 * value.signum());
    ///     }
    /// }
    ///
    /// let mut updaters = Updaters::builtin();
    /// updaters.register::<f32>("sign", |_settings| Box::new(Sign));
    /// let sign = UpdaterSpec::Custom { name: "sign".into(), settings: vec![] };
    /// assert!(updaters.make::<f32>(&sign).is_ok() && updaters.make::<f64>(&sign).is_err());
    /// ```
    pub fn register<T: Number>(
        &mut self,
        name: &str,
        make: impl Fn(&[f64]) -> Box<dyn Updater<T>> + Send + Sync + 'static,
    ) {
        T::makers_mut(self).insert(name.to_owned(), Arc::new(make));
    }

    /// Makes the updater that a spec asks for, for tables of `T`.
    ///
    /// ```
    /// use types::UpdaterSpec;
    /// use update::{Updaters, Slots, UpdateStep};
    ///
    /// let sgd = Updaters::builtin().make::<f32>(&UpdaterSpec::Sgd { rate: 0.5 }).expect("a built-in one");
    /// let mut slab = [1.0];
    /// sgd.update_rows(&UpdateStep::default(), 1, &mut slab, Slots::List(&[0]), &[1.0]);
    /// assert_eq!(slab, [0.5]);
    /// ```
    pub fn make<T: Number>(&self, spec: &UpdaterSpec) -> Result<Box<dyn Updater<T>>, UnknownUpdater> {
        let makers = T::makers(self);
        let made = match spec {
            UpdaterSpec::Custom { name, settings } => makers.get(name).map(|make| make(settings)),
            builtin => T::builtin(builtin),
        };
        made.ok_or_else(|| UnknownUpdater {
            wanted: spec.clone(),
            number: T::TYPE,
            registered: makers.keys().cloned().collect(),
        })
    }
}

/// How many numbers the row state of a table has: its weights and its updater's state. None for an
/// updater that the program registers, because only servers know its state.
///
/// ```
/// use types::{TableSpec, UpdaterSpec};
///
/// let adagrad = UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 };
/// assert_eq!(update::row_state_width(&TableSpec::sparse("t", 8).updater(adagrad)), Some(16));   // a sum of squares for each weight
/// let own = UpdaterSpec::Custom { name: "own".into(), settings: vec![] };
/// assert_eq!(update::row_state_width(&TableSpec::sparse("t", 8).updater(own)), None);
/// ```
#[must_use]
pub fn row_state_width(spec: &TableSpec) -> Option<usize> {
    fn state<T: Number>(spec: &TableSpec) -> Option<usize> {
        Some(Updaters::builtin().make::<T>(&spec.updater).ok()?.state(spec.width as usize))
    }
    let state = match spec.number {
        NumberType::F32 => state::<f32>(spec),
        NumberType::F64 => state::<f64>(spec),
        NumberType::I64 => state::<i64>(spec),
    };
    Some(spec.width as usize + state?)
}

/// The built-in updaters for every number type, integers too.
pub(crate) fn exact_builtin<T: Number>(spec: &UpdaterSpec) -> Option<Box<dyn Updater<T>>> {
    match spec {
        UpdaterSpec::Sum => Some(Box::new(Sum)),
        UpdaterSpec::Assign => Some(Box::new(Assign)),
        _ => None,
    }
}

/// The built-in updaters for real numbers: all of them.
pub(crate) fn real_builtin<T: Real>(spec: &UpdaterSpec) -> Option<Box<dyn Updater<T>>> {
    Some(match *spec {
        UpdaterSpec::Sum | UpdaterSpec::Assign => return exact_builtin(spec),
        UpdaterSpec::Sgd { rate } => Box::new(Sgd { rate }),
        UpdaterSpec::Momentum { rate, momentum } => Box::new(Momentum { rate, momentum }),
        UpdaterSpec::Adagrad { rate, epsilon } => Box::new(Adagrad { rate, epsilon }),
        UpdaterSpec::Adam { rate, beta1, beta2, epsilon } => Box::new(Adam { rate, beta1, beta2, epsilon }),
        UpdaterSpec::Ftrl { rate, beta, l1, l2 } => Box::new(Ftrl { rate, beta, l1, l2 }),
        UpdaterSpec::Proximal { rate, l1 } => Box::new(Proximal { rate, l1 }),
        UpdaterSpec::Custom { .. } => return None,
    })
}

/// A spec names an updater that this program does not have for the table's number type.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownUpdater {
    /// What the spec asks for.
    pub wanted: UpdaterSpec,
    /// The table's number type.
    pub number: NumberType,
    /// Which updaters this program registered for that number type.
    pub registered: Vec<String>,
}

impl fmt::Display for UnknownUpdater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let builtin = match self.number {
            NumberType::F32 | NumberType::F64 => "sum, assign, sgd, momentum, adagrad, adam, ftrl, proximal",
            NumberType::I64 => "sum, assign",
        };
        write!(f, "no updater '{}' for {} tables; built in: {builtin}; ", self.wanted, self.number)?;
        match self.registered.as_slice() {
            [] => write!(f, "registered: none")?,
            names => write!(f, "registered: {}", names.join(", "))?,
        }
        write!(f, "; use one of these, or register it on every server before the table is made")
    }
}

impl std::error::Error for UnknownUpdater {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UpdateStep;

    struct Scaled(f64);

    impl Updater<i64> for Scaled {
        fn state(&self, _: usize) -> usize {
            0
        }
        fn update(&self, _: &UpdateStep, _: usize, row: &mut [i64], gradient: &[i64]) {
            row[0] += gradient[0] * self.0 as i64;
        }
    }

    fn custom(name: &str, settings: &[f64]) -> UpdaterSpec {
        UpdaterSpec::Custom { name: name.to_owned(), settings: settings.to_vec() }
    }

    #[test]
    fn a_registered_updater_gets_its_settings_and_is_in_clones_of_the_list() {
        let mut updaters = Updaters::builtin();
        updaters.register::<i64>("scaled", |settings| Box::new(Scaled(settings[0])));
        let scaled = updaters.clone().make::<i64>(&custom("scaled", &[3.0])).unwrap();
        let mut row = [1];
        scaled.update(&UpdateStep::default(), 1, &mut row, &[4]);
        assert_eq!(row, [13]);
    }

    #[test]
    fn an_unknown_updater_is_refused_with_the_known_ones_and_a_remedy() {
        let mut updaters = Updaters::builtin();
        let says = |updaters: &Updaters, spec: &UpdaterSpec, words: &[&str]| {
            let error = updaters.make::<i64>(spec).err().expect("it is unknown").to_string();
            for word in words {
                assert!(error.contains(word), "{error} lacks '{word}'");
            }
        };
        says(
            &updaters,
            &custom("scaled", &[]),
            &["'scaled'", "i64", "sum, assign;", "registered: none", "register it"],
        );
        updaters.register::<i64>("scaled", |_| Box::new(Scaled(1.0)));
        says(&updaters, &custom("scalded", &[]), &["'scalded'", "registered: scaled"]);
        says(&updaters, &UpdaterSpec::Sgd { rate: 0.1 }, &["sgd", "i64"]);
        // An updater registered for one number type is not registered for another.
        assert!(updaters.make::<f32>(&custom("scaled", &[])).is_err());
    }
}
