//! Who a process is, and how it proves that: job tokens, certificates, and the TLS settings that
//! follow from them.
//!
//! A job has one certificate authority. Every process has a certificate of that authority, which
//! names the job and a [`Role`](types::Role). A connection is mutual TLS 1.3, so each end knows the
//! [`PeerIdentity`] of the other before it reads a frame.
//!
//! Invariants:
//! - The secret of a job token never leaves [`JobToken`] but in the text of the token itself.
//! - Only TLS 1.3, without resumption and without early data.
//! - A peer is accepted only if the authority signed its certificate, the certificate is valid now,
//!   and it names exactly one role of this job.

mod authority;
mod credentials;
mod http;
mod name;
mod peer;
mod token;
mod verify;

pub use authority::Lifetime;
pub use credentials::Credentials;
pub use http::HttpReaders;
pub use name::{CertificateName, CertificateNameError};
pub use peer::PeerIdentity;
pub use token::{HttpBearer, JobToken, RestrictedToken, Token, TokenError};
