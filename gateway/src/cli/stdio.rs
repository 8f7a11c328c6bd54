//! `manyhands stdio`: the gateway as an MCP server on stdin and stdout.

use anyhow::{Context as _, bail};
use axum::body::Body;
use clap::Args;
use hands::open_files;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;

use super::control::{Found, encoded, find, refusal};
use super::{Setting, log_to_stderr};
use crate::serve::Scope;
use crate::serve::control::stdio::{PROTOCOL, serve};
use crate::session::SessionRef;

/// What a client is told whose owner went away under it.
const OWNER_ENDED: &str =
    "the manyhands that owns the data has ended: start this again, it then answers by itself";

#[derive(Args)]
pub(super) struct Options {
    /// The session that calls go to: a name or an id
    #[arg(long, value_name = "SESSION", default_value = "default")]
    session: SessionRef,
}

pub(super) async fn run(setting: Setting, options: Options) -> anyhow::Result<()> {
    log_to_stderr(&setting.config);
    open_files::raise()?;
    let stop = super::serve::stop_on_signal(&setting.signals)?;
    let gateway = match find(&setting.config).await? {
        Found::There { sender, driver, .. } => {
            let _driver = driver;
            return tokio::select! {
                done = relay(sender, &options.session) => done,
                // The owner sees the end of this connection, and cancels what this client still waits for.
                () = stop.cancelled() => Ok(()),
            };
        }
        Found::Here(gateway) => gateway,
    };
    // Further clients and commands come in through this process. Turns that others left wait for a gateway.
    if let Err(error) = gateway.answer_commands(Scope::Spoken) {
        gateway.shutdown().await;
        return Err(error.into());
    }
    tokio::select! {
        () = serve(&gateway, options.session, tokio::io::stdin(), tokio::io::stdout()) => {}
        () = stop.cancelled() => {}
    }
    gateway.shutdown().await;
    Ok(())
}

/// Carries bytes between this process's streams and the owner.
async fn relay(mut sender: SendRequest<Body>, session: &SessionRef) -> anyhow::Result<()> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(format!("/stdio?session={}", encoded(&session.to_string())))
        .header(header::HOST, "manyhands")
        .header(header::UPGRADE, PROTOCOL)
        .header(header::CONNECTION, "upgrade")
        .body(Body::empty())?;
    sender.ready().await.context(OWNER_ENDED)?;
    let response = sender.send_request(request).await.context(OWNER_ENDED)?;
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
            done = &mut up, if !sent => match done {
                Ok(()) => sent = true,
                Err(_) => bail!(OWNER_ENDED),
            },
            done = &mut down => match done {
                Ok(_) if sent => return Ok(()),
                Ok(_) | Err(_) => bail!(OWNER_ENDED),
            },
        }
    }
}
