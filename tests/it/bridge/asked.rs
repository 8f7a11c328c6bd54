//! What real servers ask in the middle of a call, over HTTP and stdio, and what clients of the other era, and of the same,
//! answer. The conformance suite asks only clients of the server's own era.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};
use tests::fixture::{self, Fixture, offered};
use tests::gateway::{Gateway, Options};

use crate::mcp::client::{Client, ERAS, Era, text};

/// More rounds than a server here asks.
const ROUNDS: usize = 4;

/// The fixture server behind the gateway itself.
struct Asking {
    gateway: Gateway,
    _server: Option<Fixture>,
}

impl Asking {
    async fn over_http(era: &str) -> Result<Self> {
        let server = Fixture::start(&["--era", era]).await?;
        let hand = format!("url = \"{}\"", server.url());
        Self::behind(&hand, Some(server)).await
    }

    async fn over_stdio(era: &str) -> Result<Self> {
        let program = fixture::binary().to_string_lossy().into_owned();
        Self::behind(&format!("command = [{program:?}, \"--stdio\", \"--era\", {era:?}]"), None).await
    }

    async fn behind(hand: &str, server: Option<Fixture>) -> Result<Self> {
        let config = format!("[hands.fixture]\nkind = \"mcp\"\n{hand}\n");
        let gateway = Gateway::start(Options::default().config(&config)).await?;
        offered(&gateway, "fixture").await?;
        Ok(Self { gateway, _server: server })
    }

    async fn client(&self, era: Era, capabilities: Value) -> Result<Client> {
        let url = format!("{}/mcp/hands/fixture", self.gateway.url());
        let mut client = Client::unconnected(&url, &self.gateway.owner_token()?, era).declaring(capabilities);
        if era == Era::Legacy {
            client.initialize().await?;
        }
        Ok(client)
    }
}

/// Calls a tool and gives this answer, a JSON-RPC response but for its id, to whatever is asked. Returns what was asked,
/// method and params, and the response to the call.
pub(crate) async fn call(
    client: &Client,
    tool: &str,
    arguments: &Value,
    answer: &Value,
) -> Result<(Vec<Value>, Value)> {
    let params = json!({"name": tool, "arguments": arguments});
    match client.era {
        Era::Modern => call_in_rounds(client, params, answer).await,
        Era::Legacy => call_on_a_stream(client, params, answer).await,
    }
}

async fn call_in_rounds(client: &Client, mut params: Value, answer: &Value) -> Result<(Vec<Value>, Value)> {
    let mut asked = Vec::new();
    for _ in 0..ROUNDS {
        let response = client.request("tools/call", params.clone()).await?;
        let result = &response["result"];
        if result["resultType"] != "input_required" {
            return Ok((asked, response));
        }
        let mut answers = Map::new();
        for (key, question) in result["inputRequests"].as_object().context("no questions")? {
            asked.push(json!([question["method"], question["params"]]));
            answers.insert(key.clone(), answer["result"].clone());
        }
        params["inputResponses"] = answers.into();
        params["requestState"] = result["requestState"].clone();
    }
    bail!("no end after {asked:?}")
}

async fn call_on_a_stream(client: &Client, params: Value, answer: &Value) -> Result<(Vec<Value>, Value)> {
    let mut stream = client.open("tools/call", params).await?;
    let mut asked = Vec::new();
    loop {
        let message = stream.next().await?.with_context(|| format!("no response after {asked:?}"))?;
        match (message.get("method"), message.get("id")) {
            (Some(method), Some(id)) => {
                asked.push(json!([method, message["params"]]));
                let mut response = answer.clone();
                response["jsonrpc"] = "2.0".into();
                response["id"] = id.clone();
                ensure!(client.post(&response, &[]).await?.status() == 202);
            }
            (Some(_), None) => {}
            (None, _) => return Ok((asked, message)),
        }
    }
}

fn elicitation() -> Value {
    json!({"message": "Wer? 誰?"})
}

fn sampling() -> Value {
    json!({"prompt": "Sag es. 言って"})
}

async fn accepted(client: &Client) -> Result<()> {
    let answer =
        json!({"result": {"action": "accept", "content": {"username": "名", "email": "a@example.org"}}});
    let (asked, response) = call(client, "test_elicitation", &elicitation(), &answer).await?;
    let [question] = &asked[..] else { bail!("asked {asked:?}") };
    ensure!(question[0] == "elicitation/create", "{question}");
    ensure!(question[1]["message"] == elicitation()["message"], "{question}");
    ensure!(question[1]["requestedSchema"]["required"] == json!(["username", "email"]), "{question}");
    let said = text(&response["result"]);
    ensure!(said.contains("action=accept") && said.contains("名"), "{response}");

    let spoken = json!({"type": "text", "text": "言った"});
    let answer = json!({"result": {"role": "assistant", "content": spoken, "model": "m"}});
    let (asked, response) = call(client, "test_sampling", &sampling(), &answer).await?;
    let [question] = &asked[..] else { bail!("asked {asked:?}") };
    ensure!(question[0] == "sampling/createMessage", "{question}");
    ensure!(question[1]["messages"][0]["content"]["text"] == sampling()["prompt"], "{question}");
    ensure!(question[1]["maxTokens"] == 100, "{question}");
    ensure!(text(&response["result"]) == "LLM response: 言った", "{response}");
    Ok(())
}

async fn declined(client: &Client) -> Result<()> {
    for action in ["decline", "cancel"] {
        let answer = json!({"result": {"action": action}});
        let (asked, response) = call(client, "test_elicitation", &elicitation(), &answer).await?;
        ensure!(asked.len() == 1, "asked {asked:?}");
        let said = format!("User response: action={action}, content=null");
        ensure!(text(&response["result"]) == said, "{response}");
    }
    // Sampling is refused by an error, which only a client of 2025 can answer with.
    if client.era == Era::Legacy {
        let answer = json!({"error": {"code": -1, "message": "User rejected sampling request"}});
        let (asked, response) = call(client, "test_sampling", &sampling(), &answer).await?;
        ensure!(asked.len() == 1, "asked {asked:?}");
        ensure!(failed(&response), "{response}");
    }
    Ok(())
}

async fn not_asked(client: &Client, tool: &str, arguments: &Value) -> Result<()> {
    let (asked, response) = call(client, tool, arguments, &json!({"result": {}})).await?;
    ensure!(asked.is_empty(), "asked what it can't answer: {asked:?}");
    ensure!(failed(&response), "{tool}: {response}");
    Ok(())
}

fn failed(response: &Value) -> bool {
    response["error"].is_object() || response["result"]["isError"] == true
}

async fn asks(asking: &Asking) -> Result<()> {
    for era in ERAS {
        let all = json!({"elicitation": {"form": {}}, "sampling": {}});
        let client = asking.client(era, all).await?;
        accepted(&client).await.with_context(|| format!("{era:?}, accepting"))?;
        declined(&client).await.with_context(|| format!("{era:?}, declining"))?;
        for able in [json!({}), json!({"sampling": {}})] {
            let client = asking.client(era, able).await?;
            let what = || format!("{era:?}, without elicitation");
            not_asked(&client, "test_elicitation", &elicitation()).await.with_context(what)?;
        }
        for able in [json!({}), json!({"elicitation": {}})] {
            let client = asking.client(era, able).await?;
            let what = || format!("{era:?}, without sampling");
            not_asked(&client, "test_sampling", &sampling()).await.with_context(what)?;
        }
        // What went before did the server no harm.
        accepted(&client).await.with_context(|| format!("{era:?}, again"))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_of_2025_over_http() -> Result<()> {
    asks(&Asking::over_http("2025").await?).await
}

#[tokio::test]
async fn a_server_of_2025_over_stdio() -> Result<()> {
    asks(&Asking::over_stdio("2025").await?).await
}

#[tokio::test]
async fn a_server_of_2026_over_http() -> Result<()> {
    asks(&Asking::over_http("2026").await?).await
}

#[tokio::test]
async fn a_server_of_2026_over_stdio() -> Result<()> {
    asks(&Asking::over_stdio("2026").await?).await
}
