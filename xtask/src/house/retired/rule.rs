//! One rule of the list of retired words, parsed from its line.

use super::glob;

/// A retired word, and what to use instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub pattern: Pattern,
    /// The pattern as it is written in the list, without a leading `=`.
    pub shown: String,
    pub instead: String,
    /// Whether the rule applies to names only: in prose and strings, the word is an ordinary one.
    pub code_only: bool,
    /// Patterns of paths that the rule applies to; none means all paths.
    include: Vec<String>,
    exclude: Vec<String>,
}

/// What a rule looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A whole identifier.
    Whole(String),
    /// Words within an identifier.
    Name { parts: Vec<String>, any_case: bool },
    /// Text that also has other characters than letters, digits and underscores.
    Literal { text: String, any_case: bool },
}

impl Rule {
    /// Parses `pattern | use instead | scope`.
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let (shown, instead, scope) = match fields[..] {
            [shown, instead] => (shown, instead, ""),
            [shown, instead, scope] => (shown, instead, scope),
            _ => return None,
        };
        if shown.trim_start_matches('=').is_empty() || instead.is_empty() {
            return None;
        }
        let mut rule = Self {
            pattern: Pattern::of(shown),
            shown: shown.trim_start_matches('=').to_owned(),
            instead: instead.to_owned(),
            code_only: false,
            include: Vec::new(),
            exclude: Vec::new(),
        };
        for word in scope.split_whitespace() {
            match word.strip_prefix('!') {
                Some(pattern) => rule.exclude.push(pattern.to_owned()),
                None if word == "@code" => rule.code_only = true,
                None => rule.include.push(word.to_owned()),
            }
        }
        Some(rule)
    }

    /// Whether the rule applies to the file at `path`.
    pub fn applies_to(&self, path: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| glob::matches(pattern, path));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

impl Pattern {
    /// Parses a pattern. One without capitals matches in any case.
    fn of(shown: &str) -> Self {
        let any_case = !shown.contains(|character: char| character.is_ascii_uppercase());
        if let Some(name) = shown.strip_prefix('=') {
            Self::Whole(name.to_owned())
        } else if shown.bytes().all(super::is_word) {
            Self::Name { parts: segments(shown).into_iter().map(str::to_owned).collect(), any_case }
        } else {
            Self::Literal { text: shown.split_whitespace().collect::<Vec<_>>().join(" "), any_case }
        }
    }
}

/// The words of an identifier, joined by `_` or begun by capitals.
pub fn segments(name: &str) -> Vec<&str> {
    let bytes = name.as_bytes();
    let mut segments = Vec::new();
    let mut start = 0;
    for at in 1..bytes.len() {
        let upper = bytes[at].is_ascii_uppercase();
        let before_is_upper = bytes[at - 1].is_ascii_uppercase();
        let before_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        // `aB` is cut before the B, and `ABc` too: there a new word follows an abbreviation.
        if upper && (!before_is_upper || before_lower) {
            segments.push(&name[start..at]);
            start = at;
        }
    }
    segments.push(&name[start..]);
    segments.into_iter().flat_map(|segment| segment.split('_')).filter(|segment| !segment.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_cut_at_underscores_and_capitals() {
        let table = [
            ("row", &["row"][..]),
            ("row_state_width", &["row", "state", "width"]),
            ("RowState", &["Row", "State"]),
            ("HTTPServer", &["HTTP", "Server"]),
            ("ROW_STATE", &["ROW", "STATE"]),
            ("_row2", &["row2"]),
            ("tableA", &["table", "A"]),
            ("_", &[]),
        ];
        for (name, expected) in table {
            assert_eq!(segments(name), expected, "{name}");
        }
    }

    #[test]
    fn rule_has_a_pattern_a_word_and_a_scope() {
        let rule = Rule::parse("=Old | `New` | @code crates/** !crates/sim/**").expect("a rule");
        assert_eq!(rule.pattern, Pattern::Whole("Old".into()));
        assert_eq!((rule.shown.as_str(), rule.instead.as_str(), rule.code_only), ("Old", "`New`", true));
        assert!(rule.applies_to("crates/net/src/lib.rs") && !rule.applies_to("crates/sim/src/lib.rs"));
        assert_eq!(Rule::parse("= | new"), None);
    }
}
