//! The smallest registry that a Docker daemon pulls from: one image of one layer, on loopback, without hurry.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde_json::json;

/// Pieces that a layer is sent in.
const PIECES: usize = 20;
/// Pause after each, so that there is something to tell.
const PAUSE: Duration = Duration::from_millis(40);

pub(super) struct Registry {
    pub(super) port: u16,
    image: Arc<Image>,
    serving: tokio::task::JoinHandle<()>,
}

struct Image {
    manifest: Blob,
    config: Blob,
    layer: Blob,
    /// How often the layer was asked for.
    layers: AtomicUsize,
}

struct Blob {
    bytes: Bytes,
    digest: String,
}

impl Blob {
    fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        sum.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = sum.wait_with_output().unwrap();
        let digest =
            format!("sha256:{}", String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap());
        Self { bytes, digest }
    }

    fn descriptor(&self, media: &str) -> serde_json::Value {
        json!({"mediaType": media, "size": self.bytes.len(), "digest": self.digest})
    }
}

/// The media type of a manifest.
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

impl Registry {
    /// Serves an image of a root file system until it is dropped.
    #[expect(clippy::disallowed_methods, reason = "ended with the registry")]
    pub(super) async fn serve(rootfs: &Path) -> Self {
        let layer = Blob::new(std::fs::read(rootfs).unwrap());
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        });
        let config = Blob::new(config.to_string());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor("application/vnd.docker.container.image.v1+json"),
            "layers": [layer.descriptor("application/vnd.docker.image.rootfs.diff.tar")],
        });
        let manifest = Blob::new(manifest.to_string());
        let image = Arc::new(Image { manifest, config, layer, layers: AtomicUsize::new(0) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&image));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { port, image, serving }
    }

    /// How often the layer was asked for.
    pub(super) fn layers(&self) -> usize {
        self.image.layers.load(Ordering::Relaxed)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(image): State<Arc<Image>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path == "/v2/" {
        return StatusCode::OK.into_response();
    }
    if path.contains("/manifests/") {
        let headers = [
            (header::CONTENT_TYPE, MANIFEST.to_owned()),
            (header::CONTENT_LENGTH, image.manifest.bytes.len().to_string()),
            (header::HeaderName::from_static("docker-content-digest"), image.manifest.digest.clone()),
        ];
        return (headers, image.manifest.bytes.clone()).into_response();
    }
    if path.ends_with(&image.config.digest) {
        return image.config.bytes.clone().into_response();
    }
    if !path.ends_with(&image.layer.digest) {
        return StatusCode::NOT_FOUND.into_response();
    }
    image.layers.fetch_add(1, Ordering::Relaxed);
    let whole = image.layer.bytes.clone();
    let size = whole.len().div_ceil(PIECES);
    let length = whole.len();
    let pieces = futures_util::stream::iter(0..PIECES).then(move |number| {
        let piece = whole.slice((number * size).min(length)..((number + 1) * size).min(length));
        async move {
            tokio::time::sleep(PAUSE).await;
            Ok::<_, std::convert::Infallible>(piece)
        }
    });
    ([(header::CONTENT_LENGTH, length.to_string())], Body::from_stream(pieces)).into_response()
}
