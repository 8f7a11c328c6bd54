//! `manyhands stdio`: the gateway as an MCP server on stdin and stdout.

use anyhow::{Context as _, bail};
use axum::body::Body;
use clap::Args;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::control::{dial, encoded, refusal, socket};
use super::{Setting, log_to_stderr};
use crate::serve::Gateway;
use crate::serve::control::stdio::{PROTOCOL, serve};
use crate::session::SessionRef;

#[derive(Args)]
pub(super) struct Options {
    /// The session that calls go to: a name or an id
    #[arg(long, value_name = "SESSION", default_value = "default")]
    session: SessionRef,
}

pub(super) async fn run(setting: Setting, options: Options) -> anyhow::Result<()> {
    log_to_stderr();
    if let Some(stream) = socket(&setting.config.data).await {
        return relay(stream, &options.session).await;
    }
    let gateway = Gateway::open(setting.config).await?;
    let stop = super::serve::stop_on_signal(&setting.signals)?;
    tokio::select! {
        () = serve(&gateway, options.session, tokio::io::stdin(), tokio::io::stdout()) => {}
        () = stop.cancelled() => {}
    }
    gateway.shutdown().await;
    Ok(())
}

/// Carries bytes between this process's streams and the owner.
async fn relay(stream: UnixStream, session: &SessionRef) -> anyhow::Result<()> {
    let (mut sender, _driver) = dial(stream).await?;
    let request = Request::builder()
        .method(Method::GET)
        .uri(format!("/stdio?session={}", encoded(&session.to_string())))
        .header(header::HOST, "manyhands")
        .header(header::UPGRADE, PROTOCOL)
        .header(header::CONNECTION, "upgrade")
        .body(Body::empty())?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let bytes = response.into_body().collect().await?.to_bytes();
        bail!("{}", refusal(&bytes));
    }
    let upgraded = hyper::upgrade::on(response).await.context("the gateway went away")?;
    let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
    let (mut stdin, mut stdout) = (tokio::io::stdin(), tokio::io::stdout());
    let up = async {
        tokio::io::copy(&mut stdin, &mut to).await?;
        tokio::io::AsyncWriteExt::shutdown(&mut to).await
    };
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(tokio::io::copy(&mut from, &mut stdout)));
    let mut sent = false;
    loop {
        tokio::select! {
            done = &mut up, if !sent => { done?; sent = true; }
            done = &mut down => { done?; return Ok(()); }
        }
    }
}
