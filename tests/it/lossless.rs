//! What a client sees of a server directly and through the gateway, byte for byte but for the order of keys: every tool,
//! resource, template and prompt of the fixture server, in all four pairs of eras.
//!
//! `lossless/allowed.txt` lists every difference there may be, with its reason; one that does not occur any more has to
//! go from it.

mod client;
mod json;
mod tasks;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tests::fixture::{Fixture, offered};
use tests::gateway::{Gateway, Options};

use self::client::{Client, Era, Told};
use self::json::{Node, differences};

const ALLOWED: &str = include_str!("lossless/allowed.txt");

/// One line of the list.
struct Allowed {
    /// The pair: era of the client, era of the server. `*` is either.
    pair: [&'static str; 2],
    /// What was asked for, such as `tools/call numbers`. `*` at its end stands for anything.
    what: &'static str,
    /// Where in the answer. `*` stands for anything between two slashes, or at the end for all below.
    path: &'static str,
}

impl Allowed {
    /// Lines of the comparison of tasks, which is apart.
    fn is_of_tasks(&self) -> bool {
        self.what.starts_with("task ")
    }
}

#[tokio::test]
async fn clients_of_2026_at_a_server_of_2026() -> Result<()> {
    compare(Era::Modern, Era::Modern).await
}

#[tokio::test]
async fn clients_of_2026_at_a_server_of_2025() -> Result<()> {
    compare(Era::Modern, Era::Legacy).await
}

#[tokio::test]
async fn clients_of_2025_at_a_server_of_2026() -> Result<()> {
    compare(Era::Legacy, Era::Modern).await
}

#[tokio::test]
async fn clients_of_2025_at_a_server_of_2025() -> Result<()> {
    compare(Era::Legacy, Era::Legacy).await
}

/// What both clients declare.
fn declared() -> Value {
    json!({"elicitation": {"form": {}}, "sampling": {}, "roots": {}})
}

async fn compare(of_client: Era, of_server: Era) -> Result<()> {
    let mut comparison =
        Comparison::start(of_client, of_server, declared(), |line| !line.is_of_tasks()).await?;
    for (what, method, params) in requests(&mut comparison.direct).await? {
        comparison.see(&what, method, params.clone(), params).await?;
    }
    comparison.end();
    Ok(())
}

/// One client at a server, one at the gateway before another such server, and what is different for them.
struct Comparison {
    direct: Client,
    through: Client,
    pair: [&'static str; 2],
    allowed: Vec<Allowed>,
    /// Which of these occurred.
    used: BTreeSet<usize>,
    wrong: Vec<String>,
    gateway: Gateway,
    /// Two servers alike, so that what they count and keep is alike.
    _servers: [Fixture; 2],
}

impl Comparison {
    async fn start(
        of_client: Era,
        of_server: Era,
        declared: Value,
        concerns: fn(&Allowed) -> bool,
    ) -> Result<Self> {
        let era = name(of_server);
        let (alone, behind) =
            (Fixture::start(&["--era", era]).await?, Fixture::start(&["--era", era]).await?);
        let config = format!("[hands.fixture]\nkind = \"mcp\"\nurl = \"{}\"\n", behind.url());
        let gateway = Gateway::start(Options::default().config(&config)).await?;
        offered(&gateway, "fixture").await?;
        let direct = Client::connect(alone.url(), None, of_server, declared.clone()).await?;
        let url = format!("{}/mcp/hands/fixture", gateway.url());
        let through = Client::connect(&url, Some(&gateway.owner_token()?), of_client, declared).await?;
        let pair = [name(of_client), era];
        let allowed = allowed(pair).into_iter().filter(concerns).collect();
        let (used, wrong) = (BTreeSet::new(), Vec::new());
        Ok(Self { direct, through, pair, allowed, used, wrong, gateway, _servers: [alone, behind] })
    }

    /// Sends the same request either way, with the params for each. Returns the responses.
    async fn see(
        &mut self,
        what: &str,
        method: &str,
        direct: Value,
        through: Value,
    ) -> Result<Option<[Value; 2]>> {
        let left = self.direct.request(method, direct).await.with_context(|| format!("{what}, directly"))?;
        let right = match self.through.request(method, through).await {
            Ok(mut told) => {
                self.through.wait_for_logs(&mut told, left.news.len()).await;
                told
            }
            Err(error) => {
                self.wrong.push(format!("{what}: {error:#}"));
                return Ok(None);
            }
        };
        let mut found = Vec::new();
        differences("", &node(&left)?, &node(&right)?, &mut found);
        for (path, difference) in found {
            let by = self.allowed.iter().position(|allowed| allows(allowed, what, &path));
            match by {
                Some(by) => drop(self.used.insert(by)),
                None => self.wrong.push(format!("{what} {path}: {difference}")),
            }
        }
        Ok(Some([serde_json::from_str(&left.end)?, serde_json::from_str(&right.end)?]))
    }

    /// Fails with every difference that may not be, and with those that may and are not.
    #[track_caller]
    fn end(mut self) {
        let stale = self.allowed.iter().enumerate().filter(|(n, _)| !self.used.contains(n));
        self.wrong
            .extend(stale.map(|(_, line)| format!("does not occur any more: {} {}", line.what, line.path)));
        let (pair, wrong) = (self.pair, self.wrong.join("\n"));
        assert!(wrong.is_empty(), "{pair:?}:\n{wrong}\n{}", self.gateway.stderr());
    }
}

fn name(era: Era) -> &'static str {
    if era == Era::Modern { "2026" } else { "2025" }
}

/// What came of a request as one value.
fn node(told: &Told) -> Result<Node> {
    let mut fields = match Node::read(&told.end)? {
        Node::Object(fields) => fields,
        other => [("end".to_owned(), other)].into(),
    };
    if let Some(Node::Object(result)) = fields.get_mut("result") {
        for (_, key) in LISTS {
            if let Some(list) = result.get_mut(key) {
                list.key_by(&["uri", "uriTemplate", "name"]);
            }
        }
    }
    let news = told.news.iter().map(|params| Node::read(params.get())).collect::<Result<_>>()?;
    let questions = told.questions.iter().map(|question| Node::read(question)).collect::<Result<_>>()?;
    fields.insert("news".into(), Node::Array(news));
    fields.insert("questions".into(), Node::Array(questions));
    Ok(Node::Object(fields))
}

/// Everything there is to ask for: what it is called here, method, params.
async fn requests(server: &mut Client) -> Result<Vec<(String, &'static str, Value)>> {
    let mut requests = Vec::new();
    let mut add = |method: &'static str, subject: &str, params: Value| {
        requests.push((format!("{method} {subject}").trim_end().to_owned(), method, params));
    };
    for (method, _) in LISTS {
        add(method, "", json!({}));
    }
    for tool in names(server, "tools/list", "tools", "name").await? {
        if !skipped(&tool) {
            add("tools/call", &tool, json!({"name": tool, "arguments": arguments(&tool)}));
        }
    }
    for prompt in names(server, "prompts/list", "prompts", "name").await? {
        let arguments = match prompt.as_str() {
            "test_prompt_with_arguments" => json!({"arg1": "héllo", "arg2": "世界"}),
            "test_prompt_with_embedded_resource" => json!({"resourceUri": "test://example"}),
            _ => json!({}),
        };
        add("prompts/get", &prompt, json!({"name": prompt, "arguments": arguments}));
    }
    for uri in names(server, "resources/list", "resources", "uri").await? {
        add("resources/read", &uri, json!({"uri": uri}));
    }
    add("resources/read", "template", json!({"uri": "test://template/123/data"}));
    let prompt = json!({"type": "ref/prompt", "name": "test_prompt_with_arguments"});
    add("completion/complete", "prompt", json!({"ref": prompt, "argument": {"name": "arg1", "value": "pa"}}));
    let template = json!({"type": "ref/resource", "uri": "test://template/{id}/data"});
    add(
        "completion/complete",
        "template",
        json!({"ref": template, "argument": {"name": "id", "value": "1"}}),
    );
    add("tools/call", "unknown", json!({"name": "no_such_tool", "arguments": {}}));
    add("prompts/get", "unknown", json!({"name": "no_such_prompt"}));
    add("resources/read", "unknown", json!({"uri": "test://nonesuch"}));
    Ok(requests)
}

const LISTS: [(&str, &str); 4] = [
    ("tools/list", "tools"),
    ("prompts/list", "prompts"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

async fn names(server: &mut Client, method: &str, key: &str, field: &str) -> Result<Vec<String>> {
    let list: Value = serde_json::from_str(&server.request(method, json!({})).await?.end)?;
    let items = list["result"][key].as_array().with_context(|| list.to_string())?;
    Ok(items.iter().filter_map(|item| item[field].as_str()).map(str::to_owned).collect())
}

/// Tools that are compared elsewhere, or can't be.
fn skipped(tool: &str) -> bool {
    // `exit` ends the server; `whoami` shows the connection, which is another one: `limits` looks at it.
    matches!(tool, "exit" | "whoami")
}

fn arguments(tool: &str) -> Value {
    match tool {
        "echo" => json!({"text": "漢字 🧪 \u{0}\u{1f}\"\\ ü\u{301}"}),
        "big" => json!({"bytes": 100_000}),
        "slow" => json!({"ms": 20}),
        "structured" => json!({"value": [1, 2.5, null, {"deep": ["x"]}]}),
        "flood" => json!({"count": 50}),
        "touch" => json!({"uri": "test://watched-resource"}),
        "greet" => json!({"name": "Wörld"}),
        "slow_compute" => json!({"seconds": 0, "label": "a"}),
        "confirm_delete" => json!({"filename": "ä.txt"}),
        "test_sampling" => json!({"prompt": "Say it."}),
        "test_elicitation" => json!({"message": "Wer?"}),
        "test_custom_header" => json!({"region": "eu-west"}),
        _ => json!({}),
    }
}

fn allowed(pair: [&str; 2]) -> Vec<Allowed> {
    let lines = ALLOWED.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let read = lines.map(|line| {
        let parts: Vec<_> = line.split('|').map(str::trim).collect();
        let [client, server, what, path, why] = parts[..] else { panic!("five parts: {line}") };
        assert!(!why.is_empty(), "a reason: {line}");
        Allowed { pair: [client, server], what, path }
    });
    let holds = |line: &Allowed| line.pair.iter().zip(pair).all(|(of, is)| *of == "*" || *of == is);
    read.filter(holds).collect()
}

fn allows(allowed: &Allowed, what: &str, path: &str) -> bool {
    let is_meant = match allowed.what.split_once('*') {
        Some((start, end)) => what.starts_with(start) && what.ends_with(end),
        None => what == allowed.what,
    };
    let (mut pattern, mut parts) = (allowed.path.split('/').peekable(), path.split('/'));
    while let Some(wanted) = pattern.next() {
        let Some(part) = parts.next() else { return false };
        if wanted == "*" && pattern.peek().is_none() {
            return is_meant;
        }
        let fits = match wanted.strip_suffix('*') {
            Some(start) => part.starts_with(start),
            None => part == wanted,
        };
        if !fits {
            return false;
        }
    }
    is_meant && parts.next().is_none()
}
