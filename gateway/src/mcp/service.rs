//! Requests whose answers are JSON from end to end: nothing that a hand's server says passes a type that would forget
//! some of it.

use hands::mcp::Object;
use rmcp::ErrorData;
use rmcp::model::{CustomRequest, CustomResult, ErrorCode};
use serde_json::Value;

use super::wire::{Asker, Era, RawMethods};
use super::{Face, View, era_of};

/// The methods that come here.
pub const RAW_METHODS: RawMethods = &[
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
];

/// A request, with what it takes to answer it.
pub(super) struct Asked<'a> {
    pub(super) view: View,
    pub(super) era: Era,
    /// Its params without `_meta`.
    pub(super) params: Object,
    pub(super) asker: &'a Asker,
}

impl Asked<'_> {
    /// A text among the params. The wire has looked that those are there which must be.
    pub(super) fn text(&self, key: &str) -> &str {
        self.params.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Face {
    /// The whole result of a request.
    pub(super) async fn answer(
        &self,
        request: CustomRequest,
        asker: &Asker,
    ) -> Result<CustomResult, ErrorData> {
        let view = self.view(&asker.extensions)?;
        let params = match request.params {
            Some(Value::Object(params)) => params,
            _ => Object::new(),
        };
        let asked = Asked { view, era: era_of(asker), params, asker };
        let result = match request.method.as_str() {
            "tools/call" => self.call(asked).await,
            "tools/list" => self.tools(&asked),
            "prompts/list" => self.prompts(&asked),
            "prompts/get" => self.prompt(asked).await,
            "resources/list" => self.resources(&asked).await,
            "resources/templates/list" => self.templates(&asked),
            "resources/read" => self.read(asked).await,
            "completion/complete" => self.complete_for(asked).await,
            "tasks/get" => self.task(asked, "tasks/get").await,
            "tasks/update" => self.task(asked, "tasks/update").await,
            "tasks/cancel" => self.task(asked, "tasks/cancel").await,
            "logging/setLevel" => self.set_log_level(&asked),
            other => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, other.to_owned(), None)),
        };
        result.map(|result| CustomResult(Value::Object(result)))
    }
}
