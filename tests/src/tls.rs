//! Certificates made on the spot, and a door that puts TLS in front of a server on loopback.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What a server shows: its certificate and the key to it.
#[derive(Clone)]
pub struct Identity(Arc<ServerConfig>);

impl Authority {
    /// One that nobody knows yet.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Writes its certificate, for those who are to believe it.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, &self.pem)?)
    }

    /// Writes a certificate for these names and the key to it, for a program that reads them.
    pub fn write_signed(&self, names: &[&str], certificate: &Path, key: &Path) -> Result<()> {
        let pair = KeyPair::generate()?;
        std::fs::write(certificate, params(names)?.signed_by(&pair, &self.issuer)?.pem())?;
        Ok(std::fs::write(key, pair.serialize_pem())?)
    }

    /// An identity for these names that is good today.
    pub fn identity(&self, names: &[&str]) -> Result<Identity> {
        self.sign(&params(names)?)
    }

    /// One that was good until the end of 2019.
    pub fn expired(&self, names: &[&str]) -> Result<Identity> {
        let mut params = params(names)?;
        (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let chain: Vec<CertificateDer<'static>> = vec![params.signed_by(&key, &self.issuer)?.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Identity(Arc::new(config)))
    }
}

fn params(names: &[&str]) -> Result<CertificateParams> {
    Ok(CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())?)
}

/// TLS in front of a server that speaks none. Dropping it closes the door.
pub struct Door {
    address: SocketAddr,
    shown: Arc<Mutex<(Identity, CancellationToken)>>,
    _open: DropGuard,
}

impl Door {
    /// Opens one in front of the server at `url`, which is `http://ADDRESS:PORT/…`.
    pub async fn open(url: &str, identity: Identity) -> Result<Self> {
        let behind = url.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let behind: SocketAddr = behind.with_context(|| format!("no http:// URL: {url}"))?.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (shown, open) =
            (Arc::new(Mutex::new((identity, CancellationToken::new()))), CancellationToken::new());
        let (showing, closed) = (shown.clone(), open.clone());
        let guard = open.drop_guard();
        let tasks = TaskTracker::new();
        tasks.clone().spawn(closed.clone().run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (identity, cut) = lock(&showing).clone();
                let passing = async move {
                    let Ok(mut client) = TlsAcceptor::from(identity.0).accept(client).await else { return };
                    let Ok(mut server) = TcpStream::connect(behind).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                };
                tasks.spawn(cut.run_until_cancelled_owned(closed.clone().run_until_cancelled_owned(passing)));
            }
        }));
        Ok(Self { address, shown, _open: guard })
    }

    /// Shows another certificate from now on, and cuts the connections that saw the former one.
    pub fn show(&self, identity: Identity) {
        let mut shown = lock(&self.shown);
        shown.1.cancel();
        *shown = (identity, CancellationToken::new());
    }

    /// `https://localhost:PORT` and this path.
    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
