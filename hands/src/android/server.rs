//! The adb server's own protocol: requests of four hex digits and a text, answered by `OKAY` or `FAIL`.
//!
//! As in the Android sources, `packages/modules/adb/SERVICES.TXT`, `OVERVIEW.TXT`, `SYNC.TXT` and `shell_protocol.h`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long the server, which is on this machine, may take for an answer of its own.
const ANSWER: Duration = Duration::from_secs(20);
/// Most bytes of a text that the server answers with.
const MOST_TEXT: usize = 64 * 1024;

/// Why a request was not granted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    /// Nobody answers there.
    #[error("no adb server answers at {0}: {1}")]
    NoServer(SocketAddr, io::Error),
    /// It refused, in its own words.
    #[error("{0}")]
    Refused(String),
    /// It closed the connection or said something else.
    #[error("the adb server broke off: {0}")]
    Broken(#[from] io::Error),
}

/// One connection to an adb server, for one request, and a transport that may go before it.
pub(super) struct Connection(TcpStream);

impl Connection {
    /// Connects.
    pub(super) async fn new(server: SocketAddr) -> Result<Self, ServerError> {
        let no = |error| ServerError::NoServer(server, error);
        let stream = timeout(ANSWER, TcpStream::connect(server)).await.map_err(|late| no(late.into()))?;
        let stream = stream.map_err(no)?;
        // Without this every answer waits 40 ms for an acknowledgement.
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Connects, and has all that follows meant for one device.
    pub(super) async fn to_device(server: SocketAddr, serial: &str) -> Result<Self, ServerError> {
        let mut connection = Self::new(server).await?;
        connection.request(&format!("host:transport:{serial}")).await?;
        Ok(connection)
    }

    /// Makes a request and waits for `OKAY`.
    pub(super) async fn request(&mut self, request: &str) -> Result<(), ServerError> {
        let asked = async {
            self.0.write_all(format!("{:04x}{request}", request.len()).as_bytes()).await?;
            let mut status = [0; 4];
            self.0.read_exact(&mut status).await?;
            match &status {
                b"OKAY" => Ok(()),
                b"FAIL" => Err(ServerError::Refused(self.text().await?)),
                _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
        };
        timeout(ANSWER, asked).await.map_err(io::Error::from)?
    }

    /// Reads a text of four hex digits and as many bytes.
    pub(super) async fn text(&mut self) -> Result<String, ServerError> {
        let read = async {
            let mut digits = [0; 4];
            self.0.read_exact(&mut digits).await?;
            let digits = std::str::from_utf8(&digits).map_err(io::Error::other)?;
            let length = usize::from_str_radix(digits, 16).map_err(io::Error::other)?;
            let mut text = vec![0; length.min(MOST_TEXT)];
            self.0.read_exact(&mut text).await?;
            Ok(String::from_utf8_lossy(&text).trim().to_owned())
        };
        timeout(ANSWER, read).await.map_err(io::Error::from)?
    }

    /// The stream, once a service of the device is at its other end.
    pub(super) fn into_stream(self) -> TcpStream {
        self.0
    }
}

/// Asks the server itself something that it answers with a text.
pub(super) async fn ask(server: SocketAddr, request: &str) -> Result<String, ServerError> {
    let mut connection = Connection::new(server).await?;
    connection.request(request).await?;
    connection.text().await
}
