//! What a provider's refusal means. Providers agree on little: the status says most, the words the rest.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::super::ModelError;
use crate::clock;

/// Most characters of a provider's words that are shown.
const WORDS_MAX: usize = 300;
/// The longest time that a provider can ask to wait: a day. More is a mistake of its own.
const WAIT_MAX: Duration = Duration::from_hours(24);
/// The status with which the Messages API says that it has too much to do.
const OVERLOADED: u16 = 529;
/// What the providers and servers that are known say of a transcript that is too long, in lower case.
const TOO_LONG: [&str; 8] = [
    "context_length_exceeded",
    "prompt is too long",
    "input is too long",
    "exceed context limit",
    "maximum context length",
    "context length exceeded",
    "exceeds the available context size",
    "exceed_context_size_error",
];

/// What a provider said of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Its kinds and codes, in lower case.
    kinds: Vec<String>,
    /// Its sentence, without control characters.
    words: String,
}

impl Said {
    /// Of a body: JSON in any of the forms that are known, or text.
    pub(super) fn of(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::in_value(&value),
            Err(_) => Self { kinds: Vec::new(), words: shown(body) },
        }
    }

    /// Of an error that is `{"error": {…}}`, `{"error": "…"}`, or the inner object itself.
    fn in_value(value: &Value) -> Self {
        let inner = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
        let words = inner
            .as_str()
            .or_else(|| inner["message"].as_str())
            .or_else(|| value["message"].as_str())
            .or_else(|| value["detail"].as_str())
            .map_or_else(|| inner.to_string(), str::to_owned);
        let kinds = ["type", "code"].iter().filter_map(|field| match &inner[*field] {
            Value::String(kind) => Some(kind.to_ascii_lowercase()),
            Value::Number(code) => Some(code.to_string()),
            _ => None,
        });
        Self { kinds: kinds.collect(), words: shown(&words) }
    }

    fn is(&self, kinds: &[&str]) -> bool {
        self.kinds.iter().any(|kind| kinds.contains(&kind.as_str()))
    }

    fn too_long(&self) -> bool {
        let words = self.words.to_ascii_lowercase();
        TOO_LONG.iter().any(|sign| words.contains(sign)) || self.is(&TOO_LONG)
    }
}

/// What a status other than 200 means.
pub(super) fn of(status: StatusCode, headers: &HeaderMap, said: &Said, place: &str) -> ModelError {
    let why = with_status(status, &said.words);
    let retry_after = retry_after(headers);
    match status.as_u16() {
        401 | 403 => ModelError::BadKey { status: status.as_u16(), place: place.to_owned() },
        // More money is needed, not more time.
        429 if said.is(&["insufficient_quota", "billing_error"]) => ModelError::Refused { why },
        429 => ModelError::RateLimited { retry_after },
        503 | OVERLOADED => ModelError::Overloaded { retry_after },
        413 => ModelError::ContextTooLong { why },
        404 => ModelError::NotFound { why },
        408 | 409 | 425 => ModelError::Failed { why },
        // Some servers say of any mistake that it is their own.
        400..=599 if said.too_long() => ModelError::ContextTooLong { why },
        500..=599 => ModelError::Failed { why },
        300..=399 => ModelError::Refused {
            why: format!("{why}: redirects are not followed, set base_url to where it leads"),
        },
        _ => ModelError::Refused { why },
    }
}

/// What an error without a status means, as it comes in a stream.
pub(super) fn judged(said: &Said, place: &str) -> ModelError {
    let why = said.words.clone();
    if said.too_long() {
        ModelError::ContextTooLong { why }
    } else if said.is(&["insufficient_quota", "billing_error"]) {
        ModelError::Refused { why }
    } else if said.is(&["rate_limit_error", "rate_limit_exceeded", "429"]) {
        ModelError::RateLimited { retry_after: None }
    } else if said.is(&["overloaded_error", "server_overloaded", "529", "503"]) {
        ModelError::Overloaded { retry_after: None }
    } else if said.is(&["authentication_error", "permission_error", "invalid_api_key"]) {
        ModelError::BadKey { status: 401, place: place.to_owned() }
    } else if said.is(&["not_found_error", "model_not_found"]) {
        ModelError::NotFound { why }
    } else if said.is(&["invalid_request_error", "invalid_prompt", "400"]) {
        ModelError::Refused { why }
    } else {
        ModelError::Failed { why }
    }
}

/// When to come again: seconds or milliseconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let seconds = |text: &str| text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let milliseconds = text("retry-after-ms").and_then(seconds).map(|time| time / 1000);
    let after = milliseconds.or_else(|| {
        let text = text("retry-after")?;
        seconds(text).or_else(|| {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Some(Duration::try_from(at.duration_since(clock::now())).unwrap_or_default())
        })
    });
    after.map(|time| time.min(WAIT_MAX))
}

fn with_status(status: StatusCode, words: &str) -> String {
    if words.is_empty() { format!("status {status}") } else { format!("status {status}, {words}") }
}

fn shown(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(status: u16, headers: &[(&'static str, &str)], body: &Value) -> ModelError {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_str(value).unwrap())
        });
        let said = Said::of(&body.to_string());
        of(StatusCode::from_u16(status).unwrap(), &headers.collect(), &said, "the file")
    }

    #[test]
    fn waits_are_read_in_every_form() {
        let wait = |headers: &[(&'static str, &str)]| match refused(429, headers, &json!({})) {
            ModelError::RateLimited { retry_after } => retry_after,
            other => panic!("{other}"),
        };
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "0.5")]), Some(Duration::from_millis(500)));
        assert_eq!(wait(&[("retry-after", "7"), ("retry-after-ms", "20")]), Some(Duration::from_millis(20)));
        assert_eq!(wait(&[("retry-after", "-1")]), None);
        assert_eq!(wait(&[("retry-after", "NaN")]), None);
        assert_eq!(wait(&[("retry-after", "1e300")]), None);
        assert_eq!(wait(&[("retry-after", "99999999")]), Some(WAIT_MAX));
        assert_eq!(wait(&[("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "Mon, 21 Oct 2199 07:28:00 GMT")]), Some(WAIT_MAX));
        assert_eq!(wait(&[("retry-after", "soon")]), None);
    }

    #[test]
    fn every_refusal_says_whether_trying_again_helps() {
        let anthropic =
            |kind: &str, words: &str| json!({"type": "error", "error": {"type": kind, "message": words}});
        let openai = |code: &str| json!({"error": {"message": "no", "type": "x", "code": code}});
        let why = |status: &str, words: &str| format!("status {status}, {words}");
        let too_long =
            anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum");
        for (status, body, expected) in [
            (529, anthropic("overloaded_error", "Overloaded"), ModelError::Overloaded { retry_after: None }),
            (
                500,
                anthropic("api_error", "oh"),
                ModelError::Failed { why: why("500 Internal Server Error", "oh") },
            ),
            (
                400,
                anthropic("invalid_request_error", "bad"),
                ModelError::Refused { why: why("400 Bad Request", "bad") },
            ),
            (401, openai("invalid_api_key"), ModelError::BadKey { status: 401, place: "the file".into() }),
            (
                429,
                openai("insufficient_quota"),
                ModelError::Refused { why: why("429 Too Many Requests", "no") },
            ),
            (
                400,
                openai("context_length_exceeded"),
                ModelError::ContextTooLong { why: why("400 Bad Request", "no") },
            ),
            (
                404,
                json!({"error": "model \"x\" not found"}),
                ModelError::NotFound { why: why("404 Not Found", "model \"x\" not found") },
            ),
            (
                500,
                json!({"error": {"message": "the request exceeds the available context size"}}),
                ModelError::ContextTooLong {
                    why: why("500 Internal Server Error", "the request exceeds the available context size"),
                },
            ),
            (
                422,
                json!({"detail": "no tools here"}),
                ModelError::Refused { why: why("422 Unprocessable Entity", "no tools here") },
            ),
        ] {
            assert_eq!(refused(status, &[], &body), expected);
        }
        assert!(matches!(refused(400, &[], &too_long), ModelError::ContextTooLong { .. }));
    }
}
