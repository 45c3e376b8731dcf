//! Who a process is: its role in a run, and what its name is bound to.

use crate::CertificateName;
use std::fmt;
use std::str::FromStr;

/// What a process may be in a run. Its certificate names one role.
///
/// ```
/// use types::Role;
///
/// assert_eq!("reader".parse(), Ok(Role::Reader));
/// assert_eq!(Role::Worker.to_string(), "worker");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Computes: pulls and pushes rows.
    Worker,
    /// Holds shards.
    Server,
    /// Keeps membership and the plan.
    Coordinator,
    /// Reads rows, follows changes and asks for the status. Changes nothing.
    Reader,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Worker, Self::Server, Self::Coordinator, Self::Reader];

    fn word(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Server => "server",
            Self::Coordinator => "coordinator",
            Self::Reader => "reader",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.word() == text)
            .ok_or_else(|| format!("'{text}' is not a role; the roles are worker, server, coordinator and reader"))
    }
}

/// The SHA-256 of a public key (of its SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyFingerprint(pub [u8; 32]);

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Eight bytes tell the keys of a run apart.
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFingerprint({self})")
    }
}

/// What the name of a node is bound to: by it, peers tell the node from every other process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A key that the process made from its token, and has until it ends.
    Key(KeyFingerprint),
    /// The name in a certificate of the operator's: its key changes when the certificate is
    /// renewed.
    Certificate(CertificateName),
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "key {key}"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
        }
    }
}
