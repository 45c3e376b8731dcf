//! How the processes of a run prove who they are: the options `--token-file`, `--tls-cert` and
//! `--insecure`, and the command `token`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use rustix::fs::{FileType, Mode, fchmod, fstat};
use slackwater::security::{Access, CertificateFiles, JobToken, Lifetime, Role, TOKEN_FILE_VARIABLE, Token};

/// The settings of how a process proves who it is.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct SecurityOptions {
    /// The token file of the run, the same for every process. Make one with `slackwater token
    /// create > job.token`. The default is the file that SLACKWATER_TOKEN_FILE names.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Instead of a token, this process's own certificate, in PEM form, with intermediate ones
    /// after it. Its only URI in the subject alternative name (SAN) is slackwater://JOB/ROLE/NAME.
    /// The text {role} in this path and in --tls-key stands for the role: worker, server,
    /// coordinator or reader. All three files are read again when they change.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"], conflicts_with = "token_file")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The certificates of the authorities that sign for this run, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Use no token: any process that can reach this one may read, change and end the run. Without
    /// a token and without this option, the process refuses to start. SLACKWATER_INSECURE=1 says
    /// the same for every process that has no token.
    #[arg(long, conflicts_with_all = ["token_file", "tls_cert"])]
    pub(crate) insecure: bool,
}

impl SecurityOptions {
    /// The token file, given or of the environment.
    pub(crate) fn token_path(&self) -> Option<PathBuf> {
        self.token_file.clone().or_else(|| of_environment().filter(|_| !self.insecure))
    }

    /// How this process proves who it is.
    pub(crate) fn access(&self) -> Access {
        let Self { token_file, tls_cert, tls_key, tls_ca, insecure } = self.clone();
        match (token_file, tls_cert, tls_key, tls_ca) {
            (Some(path), ..) => Access::TokenFile(path),
            (None, Some(certificate), Some(key), Some(authorities)) => {
                Access::Certificates(CertificateFiles { certificate, key, authorities })
            }
            _ if insecure => Access::Insecure,
            _ => Access::FromEnvironment,
        }
    }
}

/// The settings of `token`.
#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it. A file that standard output is redirected to gets mode 0600.
    Create(CreateOptions),
    /// Print the bearer by which HTTP readers, such as Prometheus, read the metrics of the run. It
    /// comes from the job token or a reader's token.
    HttpBearer(TokenFile),
    /// Print the certificate (PEM) by which HTTP readers know the processes of the run. It is no
    /// secret. Trust it for this purpose alone: the job's token can sign a certificate for any
    /// host.
    Ca(TokenFile),
}

/// The token that `token http-bearer` and `token ca` read.
#[derive(clap::Args)]
pub(crate) struct TokenFile {
    /// The token file. The default is the file that SLACKWATER_TOKEN_FILE names.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenFile {
    fn read(&self) -> anyhow::Result<(PathBuf, Token)> {
        let path = self.token_file.clone().or_else(of_environment);
        let path =
            path.with_context(|| format!("which token? Give --token-file FILE, or set {TOKEN_FILE_VARIABLE}"))?;
        let token = Token::read(&path)?;
        Ok((path, token))
    }
}

/// The token file that the environment names.
fn of_environment() -> Option<PathBuf> {
    std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The settings of `token create`.
#[derive(clap::Args)]
pub(crate) struct CreateOptions {
    /// Restrict the token to one role: worker, server, coordinator or reader. A reader may ask for
    /// the status and follow tables, and changes nothing. Without this option the token is a new
    /// job token: its holder is a full member of the job.
    #[arg(long, value_name = "ROLE", requires = "ttl")]
    role: Option<Role>,
    /// How long a restricted token is valid: a number with s, m, h or d, such as 8h.
    #[arg(long, value_name = "TIME", requires = "role", value_parser = parse_time)]
    ttl: Option<Duration>,
    /// The name of the holder in a restricted token, for log lines.
    #[arg(long, value_name = "NAME", default_value = "restricted", requires = "role")]
    name: String,
    /// The file of the job token that a restricted token is made from. The default is the file that
    /// SLACKWATER_TOKEN_FILE names.
    #[arg(long, value_name = "FILE", requires = "role")]
    token_file: Option<PathBuf>,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 24 * 3600)];
    let found = units.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let parsed = found.and_then(|(number, seconds): (_, u64)| number.parse::<u64>().ok()?.checked_mul(seconds));
    match parsed {
        Some(seconds) if (1..=10 * 365 * 24 * 3600).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err("give a number with s, m, h or d, such as 8h, of at most 3650d".to_owned()),
    }
}

/// The command `token`.
pub(crate) fn run(command: &TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create(options) => create(options),
        TokenCommand::HttpBearer(file) => {
            let (path, token) = file.read()?;
            let bearer = token.http_bearer().with_context(|| {
                format!(
                    "{} is the token of a node, which has no bearer: give the job token or a reader's token \
                     (`slackwater token create --role reader`)",
                    path.display()
                )
            })?;
            print_secret(&format!("{}\n", bearer.text()))
        }
        TokenCommand::Ca(file) => Ok(io::stdout().write_all(file.read()?.1.authority_pem()?.as_bytes())?),
    }
}

fn create(options: &CreateOptions) -> anyhow::Result<()> {
    match (options.role, options.ttl) {
        (Some(role), Some(length)) => {
            let path = options.token_file.clone().or_else(of_environment).with_context(|| {
                format!(
                    "a restricted token is made from the job token: give its file (--token-file, {TOKEN_FILE_VARIABLE})"
                )
            })?;
            let Token::Job(token) = Token::read(&path)? else {
                bail!("{} is a restricted token itself; only the job token can make tokens", path.display());
            };
            print_secret(&token.restrict(role, &options.name, Lifetime::from_now(length))?.text())
        }
        _ => print_secret(&JobToken::create()?.text()),
    }
}

/// Prints a secret. A file that standard output is redirected to is kept from other users.
fn print_secret(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if fstat(&out).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
        fchmod(&out, Mode::RUSR | Mode::WUSR).context("cannot keep the token file from other users (mode 0600)")?;
    }
    Ok(out.write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_takes_a_number_with_a_unit() {
        for (text, seconds) in [("30s", Some(30)), ("2m", Some(120)), ("8h", Some(28_800)), ("1d", Some(86_400))] {
            assert_eq!(parse_time(text).ok().map(|time| time.as_secs()), seconds, "{text}");
        }
        for text in ["", "8", "h", "0s", "-1h", "1.5h", "4000d", "99999999999999999999h", "18446744073709551615d"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
