//! SPDX licence expressions: whether the allowed licences are enough for one.

use std::collections::BTreeSet;

/// Whether `expression` can be met by licences of `allowed` alone. `OR` offers a choice, `AND` asks
/// for both; the old form `MIT/Apache-2.0` is a choice. An expression that cannot be read is not
/// allowed.
pub fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = Words { left: spaced.split_whitespace().collect(), allowed };
    words.left.reverse();
    words.choice() == Some(true) && words.left.is_empty()
}

/// The words of an expression that are still to be read, the next one last.
struct Words<'a> {
    left: Vec<&'a str>,
    allowed: &'a BTreeSet<String>,
}

impl Words<'_> {
    fn takes(&mut self, word: &str) -> bool {
        self.left.pop_if(|next| *next == word).is_some()
    }

    /// `a OR b OR …`
    fn choice(&mut self) -> Option<bool> {
        let mut is_allowed = self.all()?;
        while self.takes("OR") {
            is_allowed |= self.all()?;
        }
        Some(is_allowed)
    }

    /// `a AND b AND …`, which binds closer than `OR`.
    fn all(&mut self) -> Option<bool> {
        let mut is_allowed = self.one()?;
        while self.takes("AND") {
            is_allowed &= self.one()?;
        }
        Some(is_allowed)
    }

    /// A licence, a licence with an exception, or an expression in parentheses.
    fn one(&mut self) -> Option<bool> {
        if self.takes("(") {
            let is_allowed = self.choice()?;
            return self.takes(")").then_some(is_allowed);
        }
        let licence = self.left.pop().filter(|word| !["OR", "AND", "WITH", ")"].contains(word))?;
        if self.takes("WITH") {
            let exception = self.left.pop()?;
            return Some(self.allowed.contains(&format!("{licence} WITH {exception}")));
        }
        Some(self.allowed.contains(licence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_is_allowed_if_allowed_licences_can_meet_it() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 / MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND ISC", true),
            ("GPL-3.0 AND ISC OR MIT", true),
            ("MIT OR ISC AND GPL-3.0", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("Apache-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT ISC", false),
            ("OR MIT", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }
}
