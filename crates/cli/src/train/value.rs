//! The values of settings: parsed from a flag, a job file or a model, and written back.

#![deny(clippy::wildcard_enum_match_arm)]

use super::setting::Kind;
use std::fmt;
use toml::de::DeValue;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Switch(bool),
    Count(u64),
    Number(f64),
    Text(String),
    Texts(Vec<String>),
}

impl Kind {
    /// Parses the value after a flag. For texts, it is one of several.
    pub(crate) fn read(self, text: &str) -> Result<Value, String> {
        let whole = || text.parse::<u64>().map_err(|_| format!("`{text}` is not a whole number from 0"));
        match self {
            Self::Switch => match text {
                "true" => Ok(Value::Switch(true)),
                "false" => Ok(Value::Switch(false)),
                _ => Err(format!("`{text}` is neither true nor false")),
            },
            Self::Text(_) => Ok(Value::Text(text.to_owned())),
            Self::Texts(_) => Ok(Value::Texts(vec![text.to_owned()])),
            Self::Word(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Self::Word(words) => Err(format!("`{text}` is not one of {}", words.join(", "))),
            Self::CountOr(_, word) if text == word => Ok(Value::Text(text.to_owned())),
            Self::CountOr(_, word) => whole().map(Value::Count).map_err(|problem| format!("{problem} or `{word}`")),
            Self::Count(_, least, most) => match whole()? {
                count if (least..=most).contains(&count) => Ok(Value::Count(count)),
                count => Err(format!("{count} is not in {least}..={most}")),
            },
            Self::Number(least) => match text.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= least => Ok(Value::Number(number)),
                Ok(number) => Err(format!("{number} is not a finite number of at least {least}")),
                Err(_) => Err(format!("`{text}` is not a number")),
            },
        }
    }

    /// Parses a value of a job file.
    pub(crate) fn read_toml(self, value: &DeValue<'_>) -> Result<Value, String> {
        let found = |wanted: &str| format!("expected {wanted}, found {}", described(value));
        match (self, value) {
            (Self::Switch, DeValue::Boolean(switch)) => Ok(Value::Switch(*switch)),
            (Self::Switch, _) => Err(found("true or false")),
            (Self::Texts(_), DeValue::Array(items)) => {
                let text = |item: &DeValue<'_>| item.as_str().map(str::to_owned);
                let texts: Option<Vec<String>> = items.iter().map(|item| text(item.get_ref())).collect();
                texts.map(Value::Texts).ok_or_else(|| found("texts in quotes"))
            }
            (Self::Text(_) | Self::Texts(_) | Self::Word(_) | Self::CountOr(..), DeValue::String(text)) => {
                self.read(text)
            }
            (Self::Count(..) | Self::CountOr(..) | Self::Number(_), DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                self.read(number.as_str())
            }
            (Self::Number(_), DeValue::Float(number)) => self.read(number.as_str()),
            (Self::Text(_) | Self::Word(_), _) => Err(found("a text in quotes")),
            (Self::Texts(_), _) => Err(found("a text in quotes, or several in brackets")),
            (Self::Count(..), _) => Err(found("a whole number")),
            (Self::CountOr(_, word), _) => Err(found(&format!("a whole number or \"{word}\""))),
            (Self::Number(_), _) => Err(found("a number")),
        }
    }

    /// Parses a value that a model holds.
    pub(crate) fn read_kept(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Texts(_) => {
                let value = DeValue::parse(text).map_err(|error| error.message().to_owned())?;
                self.read_toml(value.get_ref())
            }
            Self::Switch | Self::Text(_) | Self::Word(_) | Self::Count(..) | Self::CountOr(..) | Self::Number(_) => {
                self.read(text)
            }
        }
    }
}

fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(number) => format!("the number {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(switch) => switch.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "brackets".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

impl Value {
    /// The value as a model holds it: as plain text, except that several texts are written as in a
    /// job file.
    pub(crate) fn kept(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other @ (Self::Switch(_) | Self::Count(_) | Self::Number(_) | Self::Texts(_)) => other.to_string(),
        }
    }

    /// The value as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Switch(switch) => (*switch).into(),
            Self::Count(count) => (*count).into(),
            Self::Number(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Texts(texts) => texts.clone().into(),
        }
    }
}

/// Writes the value as in a job file.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(switch) => write!(f, "{switch}"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{}", toml::Value::from(text.as_str())),
            Self::Texts(texts) => write!(f, "{}", toml::Value::from(texts.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_same_from_a_flag_from_a_file_and_from_a_model() {
        let words = Kind::Word(&["a", "b"]);
        for (kind, flag, file, expected) in [
            (Kind::Switch, "true", "true", Value::Switch(true)),
            (Kind::Count("N", 1, 9), "7", "7", Value::Count(7)),
            (Kind::CountOr("N", "off"), "0", "0", Value::Count(0)),
            (Kind::CountOr("N", "off"), "off", "\"off\"", Value::Text("off".to_owned())),
            (Kind::Number(0.0), "1e-3", "1e-3", Value::Number(0.001)),
            (Kind::Number(0.0), "2", "2", Value::Number(2.0)),
            (words, "b", "'b'", Value::Text("b".to_owned())),
            (Kind::Text("T"), "a \"b\" \\", "'a \"b\" \\'", Value::Text("a \"b\" \\".to_owned())),
            (Kind::Texts("T"), "a", "['a']", Value::Texts(vec!["a".to_owned()])),
            (Kind::Texts("T"), "a, 'b'", "\"a, 'b'\"", Value::Texts(vec!["a, 'b'".to_owned()])),
        ] {
            assert_eq!(kind.read(flag), Ok(expected.clone()));
            let from_file = |text: &str| kind.read_toml(DeValue::parse(text).unwrap().get_ref());
            assert_eq!(from_file(file), Ok(expected.clone()));
            assert_eq!(from_file(&expected.to_string()), Ok(expected.clone()), "what is shown can be put into a file");
            assert_eq!(kind.read_kept(&expected.kept()), Ok(expected));
        }
    }

    #[test]
    fn read_refuses_wrong_values_with_a_reason() {
        for (kind, flag, problem) in [
            (Kind::Switch, "yes", "`yes` is neither true nor false"),
            (Kind::Count("N", 1, 9), "0", "0 is not in 1..=9"),
            (Kind::Count("N", 1, 9), "-1", "`-1` is not a whole number from 0"),
            (Kind::CountOr("N", "off"), "of", "`of` is not a whole number from 0 or `off`"),
            (Kind::Number(0.0), "nan", "NaN is not a finite number of at least 0"),
            (Kind::Number(0.0), "-1", "-1 is not a finite number of at least 0"),
            (Kind::Word(&["a", "b"]), "c", "`c` is not one of a, b"),
        ] {
            assert_eq!(kind.read(flag), Err(problem.to_owned()));
        }
        for (kind, file, problem) in [
            (Kind::Count("N", 1, 9), "'7'", "expected a whole number, found the text \"7\""),
            (Kind::Count("N", 1, 9), "7.0", "expected a whole number, found the number 7.0"),
            (Kind::Texts("T"), "[1]", "expected texts in quotes, found brackets"),
            (Kind::Text("T"), "true", "expected a text in quotes, found true"),
        ] {
            assert_eq!(kind.read_toml(DeValue::parse(file).unwrap().get_ref()), Err(problem.to_owned()));
        }
    }
}
