//! Patterns of paths (globs): `*` matches anything within one folder, `**` also across folders.

/// Whether `pattern` matches the whole of `path`.
pub fn matches(pattern: &str, path: &str) -> bool {
    matches_bytes(pattern.as_bytes(), path.as_bytes())
}

fn matches_bytes(pattern: &[u8], path: &[u8]) -> bool {
    match pattern {
        [] => path.is_empty(),
        // Any number of whole folders, including none: `a/**/b` matches `a/b`.
        [b'*', b'*', b'/', rest @ ..] => {
            matches_bytes(rest, path)
                || path.iter().enumerate().any(|(at, &byte)| byte == b'/' && matches_bytes(rest, &path[at + 1..]))
        }
        [b'*', b'*', rest @ ..] => (0..=path.len()).any(|at| matches_bytes(rest, &path[at..])),
        [b'*', rest @ ..] => {
            let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
            (0..=end).any(|at| matches_bytes(rest, &path[at..]))
        }
        [first, rest @ ..] => path.split_first().is_some_and(|(byte, path)| byte == first && matches_bytes(rest, path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_star_stays_within_a_folder_and_two_do_not() {
        let table = [
            ("CHANGELOG.md", "CHANGELOG.md", true),
            ("CHANGELOG.md", "docs/CHANGELOG.md", false),
            ("docs/*.md", "docs/cluster.md", true),
            ("docs/*.md", "docs/decisions/0001.md", false),
            ("docs/**", "docs/decisions/0001.md", true),
            ("crates/*/src/**", "crates/node/src/registry/etcd.rs", true),
            ("crates/*/src/**", "crates/node/tests/etcd.rs", false),
            ("**/tests/**", "crates/node/tests/etcd.rs", true),
            ("**/*.rs", "build.rs", true),
            ("*.rs", "src/build.rs", false),
        ];
        for (pattern, path, expected) in table {
            assert_eq!(matches(pattern, path), expected, "{pattern} and {path}");
        }
    }
}
