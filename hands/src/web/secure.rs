//! TLS: whom we believe to be a server, and what is wrong with one that we don't believe.

use std::error::Error;
use std::io::{self, Read as _};
use std::path::PathBuf;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, InvalidMessage, RootCertStore};

use crate::canonical;

/// Most bytes of a file of certificates: all that browsers trust have a quarter of it.
const FILE_MAX: u64 = 1 << 20;

/// By whom a server's certificate must be signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// By whomever this machine trusts.
    #[default]
    Machine,
    /// By an authority whose certificate is in this PEM file, and by no other.
    Only(PathBuf),
}

impl Trust {
    /// Reads who that is. The error is a sentence.
    fn roots(&self) -> Result<Option<RootCertStore>, String> {
        let Self::Only(path) = self else { return Ok(None) };
        let unreadable = |why: String| format!("its ca file {} {why}", path.display());
        let file = canonical::open_file(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, mut file) = file.map_err(|error| unreadable(format!("can't be read: {error}")))?;
        if size > FILE_MAX {
            return Err(unreadable(format!("has {size} bytes, and at most {FILE_MAX} are read")));
        }
        let mut pem = Vec::new();
        file.read_to_end(&mut pem).map_err(|error| unreadable(format!("can't be read: {error}")))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| unreadable(format!("is no PEM file: {error}")))?;
            let added = roots.add(certificate);
            added.map_err(|error| unreadable(format!("has a certificate that can't be used: {error}")))?;
        }
        if roots.is_empty() {
            return Err(unreadable(
                "holds no certificate: it must be a PEM file with one or more".to_owned(),
            ));
        }
        Ok(Some(roots))
    }
}

/// Connects over TLS and in no other way. The error is a sentence.
pub(super) fn connector(trust: &Trust, http: HttpConnector) -> Result<HttpsConnector<HttpConnector>, String> {
    let provider = ring::default_provider();
    let builder = match trust.roots()? {
        None => HttpsConnectorBuilder::new().with_provider_and_native_roots(provider).map_err(|error| {
            format!("the certificates that this machine trusts can't be read: {error} (Debian: apt-get install ca-certificates)")
        })?,
        Some(roots) => {
            let config = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
            let config = config.map_err(|error| error.to_string())?;
            HttpsConnectorBuilder::new()
                .with_tls_config(config.with_root_certificates(roots).with_no_client_auth())
        }
    };
    Ok(builder.https_only().enable_http1().wrap_connector(http))
}

/// Why a server is not believed to be the one that was meant, in a sentence; none when that is not what went wrong.
pub(super) fn doubt(error: &(dyn Error + 'static), trust: &Trust) -> Option<String> {
    match find(error)? {
        rustls::Error::InvalidCertificate(why) => Some(certificate(why, trust)),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            Some("what answers there does not speak TLS, which https:// is".to_owned())
        }
        _ => None,
    }
}

fn certificate(error: &CertificateError, trust: &Trust) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => match trust {
            Trust::Machine => {
                "its certificate is signed by nobody whom this machine trusts: a private authority is \
                               named by ca"
                    .to_owned()
            }
            Trust::Only(path) => {
                format!("its certificate is signed by nobody in its ca file {}", path.display())
            }
        },
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate expired at {}", time(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not good before {}", time(*not_before))
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| plain(name)).collect();
            let names = if names.is_empty() { "no host".to_owned() } else { names.join(", ") };
            format!("its certificate is for {names}, and not for {}", host(expected))
        }
        other => format!("its certificate can't be accepted: {other}"),
    }
}

/// Errors of this crate hide in others, and those of the system's in those of I/O, whose `source` leaves them out.
fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error
        .downcast_ref::<rustls::Error>()
        .or_else(|| inner.and_then(|inner| find(inner)))
        .or_else(|| error.source().and_then(find))
}

/// `DnsName("a.example")` is told as `a.example`.
fn plain(name: &str) -> &str {
    name.split_once('(').map_or(name, |(_, name)| name.trim_end_matches(')')).trim_matches('"')
}

fn host(name: &ServerName<'_>) -> String {
    name.to_str().into_owned()
}

fn time(at: UnixTime) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}
