//! A scanner of source texts: it tells code, comments and strings apart, byte by byte.
//!
//! It knows just enough of each language for that. It never fails: a malformed text is classified,
//! too, if not always rightly.

/// Languages that the rules apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Rust,
    Python,
    /// Comments begin with `#`: TOML, YAML and shell.
    Hash,
    Markdown,
}

/// The kind of a byte. All bytes of a Markdown text are `Prose`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Code,
    /// A comment, or a Python docstring.
    Prose,
    /// A string or character literal.
    Text,
}

impl Language {
    /// The language of the file at `path`, from its name or its first line.
    pub fn of(path: &str, text: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => Some(Self::Rust),
            Some("py" | "pyi") => Some(Self::Python),
            Some("toml" | "yml" | "yaml" | "sh") => Some(Self::Hash),
            Some("md") => Some(Self::Markdown),
            Some(_) => None,
            None => (text.starts_with("#!") && text.lines().next()?.ends_with("sh")).then_some(Self::Hash),
        }
    }
}

/// The kind of each byte of `text`.
pub fn classify(language: Language, text: &str) -> Vec<Kind> {
    let mut scanner = Scanner { bytes: text.as_bytes(), kinds: Vec::with_capacity(text.len()) };
    while scanner.at() < text.len() {
        match language {
            Language::Rust => scanner.rust(),
            Language::Python => scanner.python(),
            Language::Hash => scanner.hash(),
            Language::Markdown => scanner.take(text.len(), Kind::Prose),
        }
    }
    scanner.kinds
}

/// `text` with blanks for everything that is not code. Prose between backticks counts as code, and
/// so does a fenced block. Lines keep their numbers.
pub fn code_only(language: Language, text: &str) -> String {
    let kinds = classify(language, text);
    let mut fenced = false;
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let is_fence = language == Language::Markdown && line.trim_start().starts_with("```");
        let mut quoted = false;
        for (offset, character) in line.char_indices() {
            let is_code = match kinds[at + offset] {
                Kind::Code => true,
                Kind::Text => false,
                Kind::Prose if fenced => !is_fence,
                Kind::Prose => {
                    quoted ^= character == '`';
                    quoted && !is_fence
                }
            };
            code.push(if is_code || character == '\n' { character } else { ' ' });
        }
        fenced ^= is_fence;
        at += line.len();
    }
    code
}

struct Scanner<'a> {
    bytes: &'a [u8],
    /// The kind of each byte that has been scanned.
    kinds: Vec<Kind>,
}

impl Scanner<'_> {
    fn at(&self) -> usize {
        self.kinds.len()
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.at()..]
    }

    /// Whether this line is blank up to here.
    fn begins_line(&self) -> bool {
        let before = self.bytes[..self.at()].iter().rev();
        before.take_while(|&&byte| byte != b'\n').all(|byte| byte.is_ascii_whitespace())
    }

    /// Classifies the next `count` bytes, or as many as are left.
    fn take(&mut self, count: usize, kind: Kind) {
        let end = (self.at() + count).min(self.bytes.len());
        self.kinds.resize(end, kind);
    }

    fn take_line(&mut self, kind: Kind) {
        let length = self.rest().iter().position(|&byte| byte == b'\n').unwrap_or(self.rest().len());
        self.take(length, kind);
    }

    /// Classifies the bytes from here through the next `end` that begins after `skip` bytes. If
    /// there are `escapes`, a backslash hides the byte after it.
    fn take_through(&mut self, skip: usize, end: &[u8], escapes: bool, kind: Kind) {
        let rest = self.rest();
        let mut at = skip;
        while at < rest.len() && !rest[at..].starts_with(end) {
            at += if escapes && rest[at] == b'\\' { 2 } else { 1 };
        }
        self.take(at + end.len(), kind);
    }

    fn rust(&mut self) {
        let rest = self.rest();
        let after_word = self.at().checked_sub(1).is_some_and(|before| is_word(self.bytes[before]));
        if rest.starts_with(b"//") {
            self.take_line(Kind::Prose);
        } else if rest.starts_with(b"/*") {
            self.take_block_comment();
        } else if let Some((opening, hashes)) = raw_string(rest).filter(|_| !after_word) {
            let end: Vec<u8> = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            self.take_through(opening, &end, false, Kind::Text);
        } else if rest[0] == b'"' {
            self.take_through(1, b"\"", true, Kind::Text);
        } else if rest[0] == b'\'' {
            match character_literal(rest) {
                Some(length) => self.take(length, Kind::Text),
                None => self.take(1, Kind::Code),
            }
        } else {
            self.take(1, Kind::Code);
        }
    }

    fn take_block_comment(&mut self) {
        let rest = self.rest();
        let mut at = 2;
        let mut depth = 1;
        while at < rest.len() && depth > 0 {
            let step = match &rest[at..] {
                [b'/', b'*', ..] => (2, depth + 1),
                [b'*', b'/', ..] => (2, depth - 1),
                _ => (1, depth),
            };
            at += step.0;
            depth = step.1;
        }
        self.take(at, Kind::Prose);
    }

    fn python(&mut self) {
        let rest = self.rest();
        let kind = if self.begins_line() { Kind::Prose } else { Kind::Text };
        if rest[0] == b'#' {
            self.take_line(Kind::Prose);
        } else if rest.starts_with(b"\"\"\"") {
            self.take_through(3, b"\"\"\"", true, kind);
        } else if rest.starts_with(b"'''") {
            self.take_through(3, b"'''", true, kind);
        } else if rest[0] == b'"' || rest[0] == b'\'' {
            let end = [rest[0]];
            self.take_through(1, &end, true, Kind::Text);
        } else {
            self.take(1, Kind::Code);
        }
    }

    fn hash(&mut self) {
        let rest = self.rest();
        let after_blank = self.at().checked_sub(1).is_none_or(|before| self.bytes[before].is_ascii_whitespace());
        if rest[0] == b'#' && after_blank {
            self.take_line(Kind::Prose);
        } else if rest.starts_with(b"\"\"\"") {
            self.take_through(3, b"\"\"\"", true, Kind::Text);
        } else if rest[0] == b'"' {
            self.take_through(1, b"\"", true, Kind::Text);
        } else {
            self.take(1, Kind::Code);
        }
    }
}

/// If `rest` begins with a raw string: the length of its opening, and its number of `#`.
fn raw_string(rest: &[u8]) -> Option<(usize, usize)> {
    let prefix = [b"r".as_slice(), b"br", b"cr"].into_iter().find(|prefix| rest.starts_with(prefix))?.len();
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    (rest.get(prefix + hashes) == Some(&b'"')).then_some((prefix + hashes + 1, hashes))
}

/// The length of the character literal that `rest` begins with; `None` if it is a lifetime.
fn character_literal(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        let end = rest.iter().skip(3).position(|&byte| byte == b'\'')?;
        return Some(end + 4);
    }
    // One character is at most four bytes of UTF-8.
    let length = (2..=5).find(|&at| rest.get(at) == Some(&b'\''))?;
    std::str::from_utf8(&rest[1..length]).is_ok_and(|text| text.chars().count() == 1).then_some(length + 1)
}

/// Whether the byte can be part of a name.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_is_found_by_extension_or_first_line() {
        let table = [
            ("crates/net/src/lib.rs", "", Some(Language::Rust)),
            ("python/a.pyi", "", Some(Language::Python)),
            (".github/workflows/ci.yml", "", Some(Language::Hash)),
            (".ci/run", "#!/bin/sh\n", Some(Language::Hash)),
            ("LICENSE", "Apache\n", None),
            ("docs/demo.svg", "", None),
        ];
        for (path, text, expected) in table {
            assert_eq!(Language::of(path, text), expected, "{path}");
        }
    }

    #[test]
    fn code_only_blanks_comments_and_strings() {
        let table = [
            (Language::Rust, "a // b", "a     "),
            (Language::Rust, "a /* b /* c */ d */ e", "a                   e"),
            (Language::Rust, r#"f("a // b", c)"#, "f(        , c)"),
            (Language::Rust, r#""a \" b" c"#, "         c"),
            (Language::Rust, r###"r#"a " b"# c"###, "           c"),
            (Language::Rust, r#"'"' a '\'' b"#, "    a      b"),
            (Language::Rust, "&'a b // 'c", "&'a b      "),
            (Language::Rust, "// uses `a` here", "        `a      "),
            (Language::Python, "a = 'b' # c", "a =        "),
            (Language::Python, "\"\"\"a\nb\"\"\"\nc", "    \n    \nc"),
            (Language::Hash, "a = \"b # c\" # d", "a =            "),
            (Language::Markdown, "a `b` c\n```\nd\n```\ne", "  `b   \n   \nd\n   \n "),
        ];
        for (language, text, code) in table {
            assert_eq!(code_only(language, text), code, "{text}");
        }
    }

    #[test]
    fn classify_reaches_the_end_of_malformed_texts() {
        for text in ["\"", "'", "'\\", "r#\"", "/*", "\"\\", "'''", "'é"] {
            for language in [Language::Rust, Language::Python, Language::Hash, Language::Markdown] {
                assert_eq!(classify(language, text).len(), text.len(), "{text}");
            }
        }
    }
}
