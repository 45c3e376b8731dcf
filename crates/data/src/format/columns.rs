//! Named columns (CSV, Parquet): which one is the label, and which features the others become.

use crate::FeatureHash;
use crate::hash::Space;

/// What each column of a file is.
///
/// A numeric column is one feature: its value is the cell, and an empty cell is no feature. In a
/// categorical column, each different cell is a feature of value 1, the empty cell too. The field
/// of a feature is its column's place, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRules {
    /// The name of the column with the labels.
    pub label: String,
    /// The rule for columns that `named` does not name.
    pub others: ColumnRule,
    /// The rules for these columns. A name that the file does not have is an error.
    pub named: Vec<(String, ColumnRule)>,
}

/// What a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRule {
    /// Numeric or categorical, by a guess. CSV: numeric if all cells in the first lines of the
    /// first file are numbers or empty, and some are numbers. Parquet: numeric if the column's type
    /// is.
    Guessed,
    /// One feature, whose value is the cell.
    Numeric,
    /// One feature for each different cell.
    Categorical,
    /// Not read.
    Ignored,
}

/// Why the columns of a file do not fit the rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// The file lacks a column that the rules name.
    #[error("there is no column `{name}`; the columns are {there_are}")]
    Missing {
        /// The name in the rules.
        name: String,
        /// The names of the file's columns.
        there_are: String,
    },
    /// Two columns have the same name.
    #[error("there are two columns `{name}`")]
    Twice {
        /// The name of both.
        name: String,
    },
    /// The first line does not give names for the columns.
    #[error("the first line is not a heading: {problem}")]
    Heading {
        /// What is wrong with it, in words.
        problem: String,
    },
    /// A column's type does not fit its rule.
    #[error("column `{name}` is {found} and cannot be {wanted}: give it the rule `Ignored` to leave it out")]
    Type {
        /// The column's name.
        name: String,
        /// Its type.
        found: String,
        /// What the rules make of it.
        wanted: &'static str,
    },
}

impl ColumnRules {
    /// Takes labels from the column `label`, and guesses what all others are.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), others: ColumnRule::Guessed, named: Vec::new() }
    }
}

/// What one column is, without guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRole {
    Label,
    Ignored,
    Number { key: u64 },
    Category { space: Space },
}

/// What each column of a file is, without guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRoles {
    pub names: Vec<String>,
    /// One for each column.
    pub roles: Vec<ColumnRole>,
}

impl ColumnRoles {
    /// Settles what the columns with these names are. `guess` says whether the column at a place
    /// looks numeric. The label column may be missing if no labels are needed.
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

    /// Rules that say what was settled, without guesses. Columns that this file does not have are
    /// ignored.
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
    fn settle_follows_named_rules_and_guesses_other_columns() {
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
    fn settle_names_missing_and_repeated_columns() {
        let mut columns = ColumnRules::new("y");
        let problem = |columns: &ColumnRules, names: &[&str]| settle(columns, names).unwrap_err().to_string();
        assert_eq!(problem(&columns, &["a", "b"]), "there is no column `y`; the columns are a, b");
        assert_eq!(problem(&columns, &["a", "y", "a"]), "there are two columns `a`");
        columns.named = vec![("c".to_owned(), ColumnRule::Ignored)];
        assert_eq!(problem(&columns, &["a", "y"]), "there is no column `c`; the columns are a, y");
    }
}
