//! The two APIs of `OpenAI`, and of the many who speak as it does: Chat Completions, which local servers have, and
//! Responses, which keeps reasoning from one call to the next.

mod chat;
mod responses;

use async_trait::async_trait;
use serde_json::Value;

use super::draft::Draft;
use super::provider::{KeyHeader, Provider, malformed};
use super::{Emit, Image, Model, ModelError, Request, Seen, Thought, ToolResult};
use crate::brain::{Api, Endpoint, Home};
use crate::hand::Variables;

/// Who understands reasoning that is encrypted.
const PROVIDER: &str = "openai";

/// Models behind one of the two APIs.
pub(super) struct OpenAi {
    provider: Provider,
    api: Api,
    home: Home,
}

impl OpenAi {
    /// Touches nothing. The error is a sentence.
    pub(super) fn new(endpoint: &Endpoint, api: Api, variables: Variables) -> Result<Self, String> {
        let path = match api {
            Api::Chat => "/chat/completions",
            Api::Responses => "/responses",
        };
        let provider = Provider::new(endpoint, path, KeyHeader::Bearer, variables)?;
        Ok(Self { provider, api, home: endpoint.home })
    }
}

#[async_trait]
impl Model for OpenAi {
    async fn think(&self, request: &Request<'_>, out: &mut dyn Emit) -> Result<Thought, ModelError> {
        let mut draft = Draft::new(out);
        let body = match self.api {
            Api::Chat => chat::body(request, self.home),
            Api::Responses => responses::body(request),
        };
        let mut answer = self.provider.ask(&body, &[]).await?;
        match self.api {
            Api::Chat => chat::read(&mut answer, &mut draft).await?,
            Api::Responses => responses::read(&mut answer, &mut draft).await?,
        }
        let Some(stop) = draft.stop else {
            return Err(ModelError::BrokenOff { why: "the stream ended before the answer did".to_owned() });
        };
        Ok(draft.finish(stop))
    }
}

/// An event of a stream.
fn parse(data: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(data).map_err(|error| malformed(&error))
}

/// An image as both APIs take it.
fn url(image: &Image) -> String {
    format!("data:{};base64,{}", image.media_type, image.data)
}

/// The text of a result: neither API has another way to say that a tool failed.
fn text(result: &ToolResult) -> String {
    let texts: Vec<_> = result
        .content
        .iter()
        .filter_map(|seen| match seen {
            Seen::Text(text) => Some(text.as_str()),
            Seen::Image(_) => None,
        })
        .collect();
    let text = texts.join("\n");
    match (result.is_error, text.is_empty()) {
        (true, _) => format!("The tool failed: {text}"),
        // Some servers refuse an empty result.
        (false, true) => "(no text)".to_owned(),
        (false, false) => text,
    }
}

fn images(result: &ToolResult) -> impl Iterator<Item = &Image> {
    result.content.iter().filter_map(|seen| match seen {
        Seen::Image(image) => Some(image),
        Seen::Text(_) => None,
    })
}

/// What was used: numbers are totals, and what was read from the cache is in the input.
fn count(usage: &Value, input: &str, output: &str, draft: &mut Draft<'_>) {
    if let Some(all) = usage[input].as_u64() {
        let details = format!("{input}_details");
        let cached = usage[details.as_str()]["cached_tokens"].as_u64().unwrap_or(0).min(all);
        draft.usage.input = all - cached;
        draft.usage.cache_read = cached;
    }
    if let Some(tokens) = usage[output].as_u64() {
        draft.usage.output = tokens;
    }
}
