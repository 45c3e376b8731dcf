//! Who a process is, and how it proves that: job tokens, certificates, and the TLS settings that
//! follow from them.
//!
//! A job has one certificate authority: the job token's, or one of the operator's. Every process
//! has a certificate of that authority, which names the job and a [`Role`](types::Role). A
//! connection is mutual TLS 1.3, so each end knows the [`PeerIdentity`] of the other before it
//! reads a frame.
//!
//! Invariants:
//! - The secret of a job token never leaves [`JobToken`] but in the text of the token itself.
//! - Only TLS 1.3, without resumption and without early data.
//! - A secret is read only from a file that other users cannot read.
//! - A peer is accepted only if the authority signed its certificate, the certificate is valid now,
//!   and it names exactly one role of this job.

mod authority;
mod certificate_files;
mod credentials;
mod http;
mod peer;
mod private_file;
mod token;
mod verify;

pub use authority::Lifetime;
pub use certificate_files::{CertificateFileError, CertificateFiles};
pub use credentials::Credentials;
pub use http::HttpReaders;
pub use peer::PeerIdentity;
pub use private_file::PrivateFileError;
pub use token::{HttpBearer, JobToken, RestrictedToken, Token, TokenError};
