//! Columns that have names: which is the label, and what features the others are.

use crate::FeatureHash;
use crate::hash::Space;

/// What the columns of a file are to be.
///
/// A numeric column is one feature whose value is the cell; an empty cell is none. A cell of a
/// categorical column is a feature of value 1, and an empty one is a value like any other. The
/// field of a feature is its column's place, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRules {
    /// The name of the column with the labels.
    pub label: String,
    /// What columns are that `named` does not name.
    pub others: ColumnRule,
    /// What these columns are. A name that the file does not have is an error.
    pub named: Vec<(String, ColumnRule)>,
}

/// What a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRule {
    /// Numeric where every cell looked at is a number, and categorical elsewhere. For CSV, the
    /// first lines of the first file are looked at; in Parquet, the column's type.
    Guessed,
    /// One feature.
    Numeric,
    /// A feature for each value.
    Categorical,
    /// No feature.
    Ignored,
}

/// Why the columns of a file do not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// The heading lacks a column that was asked for.
    #[error("there is no column `{name}`; there are {there_are}")]
    Missing {
        /// As asked for.
        name: String,
        /// The names that there are.
        there_are: String,
    },
    /// Two columns have one name.
    #[error("there are two columns `{name}`")]
    Twice {
        /// Of both.
        name: String,
    },
    /// There is no heading to take names from.
    #[error("the first line is no heading: {problem}")]
    Heading {
        /// In words.
        problem: String,
    },
    /// A column's type cannot be read as what it is to be.
    #[error("column `{name}` is {found} and cannot be {wanted}: leave it out by the rule `Ignored`")]
    Type {
        /// Of the column.
        name: String,
        /// Its type.
        found: String,
        /// What it was to be.
        wanted: &'static str,
    },
}

impl ColumnRules {
    /// Labels from the column `label`; all others are guessed.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), others: ColumnRule::Guessed, named: Vec::new() }
    }
}

/// What one column is, all settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRole {
    Label,
    Ignored,
    Number { key: u64 },
    Category { space: Space },
}

/// The columns of a file, all settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRoles {
    pub names: Vec<String>,
    /// One a column.
    pub roles: Vec<ColumnRole>,
}

impl ColumnRoles {
    /// Settles what the columns of these names are. `guess` says whether a column, by its place,
    /// looks numeric. Without labels, their column may be missing.
    pub fn settle(
        columns: &ColumnRules,
        names: Vec<String>,
        hash: FeatureHash,
        labels_needed: bool,
        mut guess: impl FnMut(usize) -> bool,
    ) -> Result<Self, ColumnError> {
        for (place, name) in names.iter().enumerate() {
            if names[..place].contains(name) {
                return Err(ColumnError::Twice { name: name.clone() });
            }
        }
        let label = labels_needed.then_some(&columns.label);
        for name in columns.named.iter().map(|(name, _)| name).chain(label) {
            if !names.contains(name) {
                let there_are = names.join(", ");
                return Err(ColumnError::Missing { name: name.clone(), there_are });
            }
        }
        let role = |(place, name): (usize, &String)| {
            if *name == columns.label {
                return ColumnRole::Label;
            }
            let rule = columns.named.iter().find(|(named, _)| named == name).map_or(columns.others, |(_, rule)| *rule);
            let space = hash.space(name.as_bytes());
            match rule {
                ColumnRule::Ignored => ColumnRole::Ignored,
                ColumnRule::Categorical => ColumnRole::Category { space },
                ColumnRule::Numeric => ColumnRole::Number { key: hash.key_of_space(space) },
                ColumnRule::Guessed if guess(place) => ColumnRole::Number { key: hash.key_of_space(space) },
                ColumnRule::Guessed => ColumnRole::Category { space },
            }
        };
        let roles = names.iter().enumerate().map(role).collect();
        Ok(Self { names, roles })
    }

    /// What was settled, as what could have been asked for. A column that is not named was not
    /// there, and is ignored.
    pub fn settled(&self, label: &str) -> ColumnRules {
        let rule = |role: &ColumnRole| match role {
            ColumnRole::Label => None,
            ColumnRole::Ignored => Some(ColumnRule::Ignored),
            ColumnRole::Number { .. } => Some(ColumnRule::Numeric),
            ColumnRole::Category { .. } => Some(ColumnRule::Categorical),
        };
        let named = self.names.iter().zip(&self.roles).filter_map(|(name, role)| Some((name.clone(), rule(role)?)));
        ColumnRules { label: label.to_owned(), others: ColumnRule::Ignored, named: named.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(columns: &ColumnRules, names: &[&str]) -> Result<ColumnRoles, ColumnError> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        ColumnRoles::settle(columns, names, FeatureHash::default(), true, |place| place == 1)
    }

    #[test]
    fn a_column_is_what_it_is_named_to_be_or_what_it_looks_like() {
        let hash = FeatureHash::default();
        let number = |name: &str| ColumnRole::Number { key: hash.key_of_space(hash.space(name.as_bytes())) };
        let category = |name: &str| ColumnRole::Category { space: hash.space(name.as_bytes()) };
        let mut columns = ColumnRules::new("y");
        let roles = settle(&columns, &["y", "a", "b"]).unwrap().roles;
        assert_eq!(roles, [ColumnRole::Label, number("a"), category("b")]);
        columns.named = vec![("a".to_owned(), ColumnRule::Categorical), ("b".to_owned(), ColumnRule::Ignored)];
        let roles = settle(&columns, &["b", "a", "y"]).unwrap().roles;
        assert_eq!(roles, [ColumnRole::Ignored, category("a"), ColumnRole::Label]);
    }

    #[test]
    fn columns_that_do_not_do_are_named() {
        let mut columns = ColumnRules::new("y");
        let problem = |columns: &ColumnRules, names: &[&str]| settle(columns, names).unwrap_err().to_string();
        assert_eq!(problem(&columns, &["a", "b"]), "there is no column `y`; there are a, b");
        assert_eq!(problem(&columns, &["a", "y", "a"]), "there are two columns `a`");
        columns.named = vec![("c".to_owned(), ColumnRule::Ignored)];
        assert_eq!(problem(&columns, &["a", "y"]), "there is no column `c`; there are a, y");
    }
}
