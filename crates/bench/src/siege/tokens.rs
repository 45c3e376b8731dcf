//! The tokens of a siege: one of each role, which the attacker may use, and proofs of a place in
//! the job that must not be accepted.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use slackwater::security::{JobToken, Lifetime, Role, Token};

use super::line::Mask;

/// For how long a token of the attacker is valid.
const VALID: Duration = Duration::from_secs(3600);
/// The file with the name that the job writes into certificates.
const NAME_FILE: &str = "name";

/// What a stranger shows in place of a certificate of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forged {
    /// No certificate.
    Nothing,
    /// A certificate of the job that has expired.
    Expired,
    /// A certificate of another job.
    OtherJob,
    /// A certificate with a name of this job, of an authority that the stranger has made.
    OtherAuthority,
}

impl Forged {
    const ALL: [Self; 4] = [Self::Nothing, Self::Expired, Self::OtherJob, Self::OtherAuthority];

    /// The name of the attack in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "tls_without_certificate",
            Self::Expired => "tls_with_expired_certificate",
            Self::OtherJob => "tls_with_certificate_of_another_job",
            Self::OtherAuthority => "tls_with_certificate_of_another_authority",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Expired => "expired.token",
            Self::OtherJob => "other_job.token",
            Self::OtherAuthority => NAME_FILE,
        }
    }
}

fn role_file(role: Role) -> String {
    format!("{role}.token")
}

/// Writes the attacker's tokens, from the job's.
pub(super) fn write(job_token: &Path, folder: &Path) -> anyhow::Result<()> {
    let Token::Job(job) = Token::read(job_token)? else { bail!("the run's token is not a job token") };
    let save = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).with_context(|| format!("cannot write the attacker's file {name}"))
    };
    for role in Role::ALL {
        save(&role_file(role), &job.restrict(role, "attacker", Lifetime::from_now(VALID))?.text())?;
    }
    let worker = job.restrict(Role::Worker, "attacker", Lifetime::from_now(VALID))?;
    save(NAME_FILE, &worker.identity().map_err(anyhow::Error::msg)?.name.to_string())?;
    let other = JobToken::create()?.restrict(Role::Worker, "attacker", Lifetime::from_now(VALID))?;
    save(Forged::OtherJob.file(), &other.text())?;
    let now = Lifetime::from_now(Duration::ZERO).now.as_secs();
    let past = Duration::from_secs(now.saturating_sub(7 * 24 * 3600));
    let expired =
        Lifetime { now: rustls::pki_types::UnixTime::since_unix_epoch(past), length: Duration::from_secs(60) };
    save(Forged::Expired.file(), &job.restrict(Role::Worker, "attacker", expired)?.text())
}

fn read(folder: &Path, name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(folder.join(name)).with_context(|| format!("cannot read the attacker's file {name}"))
}

/// What the attacker shows in a role that it has a token for.
pub(super) fn mask_of(folder: &Path, role: Role) -> anyhow::Result<Mask> {
    Mask::of_token(&read(folder, &role_file(role))?)
}

/// Everything that a stranger may show.
pub(super) fn forged(folder: &Path) -> anyhow::Result<Vec<(Forged, Mask)>> {
    let mask = |forged: Forged| match forged {
        Forged::Nothing => Mask::bare(),
        Forged::Expired | Forged::OtherJob => Mask::of_token(&read(folder, forged.file())?),
        Forged::OtherAuthority => Mask::self_made(&read(folder, forged.file())?),
    };
    Forged::ALL.into_iter().map(|forged| Ok((forged, mask(forged)?))).collect()
}
