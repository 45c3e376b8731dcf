//! [`Labels`]: which labels are accepted, and what number each becomes. The program that learns
//! decides this, not the file.

/// Which labels a file may hold, and what they become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Two classes: −1 and 0 become 0, 1 becomes 1.
    Binary,
    /// Whole numbers from `first`, which become 0 … `count` − 1.
    Classes {
        /// The smallest label in the file: 0, or 1 where a file counts from one.
        first: u32,
        /// How many classes there are.
        count: u32,
    },
    /// Any finite number, as it is.
    Real,
    /// Labels are not read, and the minibatches have none.
    Ignored,
}

impl Labels {
    /// What `label` becomes, or none if it is not accepted.
    pub(crate) fn read(self, label: f32) -> Option<f32> {
        match self {
            Self::Binary if label == 1.0 => Some(1.0),
            Self::Binary if label == 0.0 || label == -1.0 => Some(0.0),
            Self::Binary => None,
            Self::Classes { first, count } => {
                let class = f64::from(label) - f64::from(first);
                (class >= 0.0 && class < f64::from(count) && class.fract() == 0.0).then_some(class as f32)
            }
            Self::Real => label.is_finite().then_some(label),
            Self::Ignored => Some(0.0),
        }
    }

    /// Which labels are accepted, for an error message.
    pub(crate) fn expected(self) -> String {
        match self {
            Self::Binary => "a label of -1, 0 or 1".to_owned(),
            Self::Classes { first, count } => {
                format!("a class from {first} to {}", u64::from(first) + u64::from(count.max(1)) - 1)
            }
            Self::Real | Self::Ignored => "a finite number as label".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_converted_or_rejected_as_the_program_asks() {
        let from_one = Labels::Classes { first: 1, count: 3 };
        for (labels, label, expected) in [
            (Labels::Binary, 1.0, Some(1.0)),
            (Labels::Binary, -1.0, Some(0.0)),
            (Labels::Binary, 0.0, Some(0.0)),
            (Labels::Binary, 2.0, None),
            (Labels::Binary, 0.5, None),
            (from_one, 1.0, Some(0.0)),
            (from_one, 3.0, Some(2.0)),
            (from_one, 0.0, None),
            (from_one, 4.0, None),
            (from_one, 1.5, None),
            (Labels::Real, -2.5, Some(-2.5)),
            (Labels::Real, f32::INFINITY, None),
        ] {
            assert_eq!(labels.read(label), expected, "{labels:?} of {label}");
        }
    }
}
