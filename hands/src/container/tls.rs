//! The way to a daemon behind TLS, which is believed by the hand's own CA and by no other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::Tls;
use super::engine::Lack;
use crate::canonical;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// A client of the daemon at `host`, whose answers may take `answer` seconds to begin. Reads the files of `tls`.
pub(super) fn client(host: &str, tls: &Tls, answer: u64) -> Result<Docker, Lack> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT));
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config(tls)?)
        .https_only()
        .enable_http1()
        .wrap_connector(connector);
    // One connection for each request, as for any other daemon: what runs in it may hold it for long.
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let transport = move |request: BollardRequest| {
        let client = client.clone();
        async move { client.request(request).await.map_err(Error::from) }
    };
    let address = format!("https://{}", host.strip_prefix("tcp://").unwrap_or(host));
    Docker::connect_with_custom_transport(transport, Some(address), answer, API_DEFAULT_VERSION)
        .map_err(|error| bad(error.to_string()))
}

fn config(tls: &Tls) -> Result<ClientConfig, Lack> {
    let mut believed = RootCertStore::empty();
    for authority in certificates("ca", &tls.ca)? {
        believed
            .add(authority)
            .map_err(|error| bad(format!("{} is of no use: {error}", tls.ca.display())))?;
    }
    let ours = certificates("certificate", &tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read("key", &tls.key)?)
        .map_err(|_| bad(format!("{} (tls.key) holds no key", tls.key.display())))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|config| config.with_root_certificates(believed))
        .and_then(|config| config.with_client_auth_cert(ours, key))
        .map_err(|error| {
            bad(format!("{} and {} do not fit: {error}", tls.certificate.display(), tls.key.display()))
        })
}

fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Lack> {
    let pem = read(setting, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| bad(format!("{} (tls.{setting}) holds no certificate", path.display())))
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>, Lack> {
    canonical::read(path)
        .map_err(|error| bad(format!("{} (tls.{setting}) can't be read: {error}", path.display())))
}

fn bad(what: impl Into<String>) -> Lack {
    Lack {
        why: what.into(),
        remedy: "name the PEM files that the Docker daemon's owner gave you by tls of the hand".into(),
    }
}
