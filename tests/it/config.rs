//! Every setting has a default, a place in the file and an environment name, and they agree.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::collections::BTreeSet;
use std::path::Path;

use gateway::brain::{BrainSetting, Reach};
use gateway::config::{Config, ConfigError, SETTINGS, environment_name};
use gateway::hand::Source;
use proptest::prelude::*;
use secrecy::ExposeSecret as _;

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::parse(text, Path::new("manyhands.toml"), environment)
}

/// The fields of a table, as the parser itself names them.
fn fields(table: &str) -> BTreeSet<String> {
    let header = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
    let error = parse(&format!("{header}zzz = 1"), &[]).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected").unwrap();
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// One value of each setting that is not its default, as text of the environment, and what it shows as.
const OTHERS: [(&str, &str); 42] = [
    ("listen", "127.0.0.1:1"),
    ("log", "debug"),
    ("allowed_hosts", "[\"a.example\"]"),
    ("allowed_origins", "[\"https://a.example\"]"),
    ("data", "/elsewhere"),
    ("database_url", "postgres://u@h/d"),
    ("drain_s", "3"),
    ("work_retention_days", "3"),
    ("nodes.heartbeat_ms", "1500"),
    ("nodes.dead_after_ms", "30000"),
    ("limits.sessions", "3"),
    ("limits.instances", "3"),
    ("limits.running_calls", "3"),
    ("limits.streams", "3"),
    ("limits.mcp_sessions", "3"),
    ("limits.stored_bytes", "3"),
    ("limits.body_bytes", "3"),
    ("limits.connections", "3"),
    ("limits.free_disk_mib", "3"),
    ("brain.provider", "scripted"),
    ("brain.model", "anthropic/claude-sonnet-4-5"),
    ("brain.base_url", "http://127.0.0.1:1"),
    ("brain.api", "responses"),
    ("brain.key_file", "/elsewhere"),
    ("brain.key_env", "A_KEY"),
    ("brain.max_tokens", "3"),
    ("brain.thinking", "high"),
    ("brain.silence_s", "3"),
    ("brain.first_token_ms", "3"),
    ("brain.token_ms", "3"),
    ("loop.steps", "3"),
    ("loop.tokens", "3"),
    ("loop.minutes", "3"),
    ("loop.cost", "3"),
    ("loop.price_input", "3"),
    ("loop.price_output", "3"),
    ("loop.price_cache_read", "3"),
    ("loop.price_cache_write", "3"),
    ("loop.tries", "3"),
    ("loop.backoff_ms", "3"),
    ("loop.compact_at", "3"),
    ("loop.whole_results", "3"),
];

fn shown(config: &Config) -> String {
    let url = config.database_url.as_ref().map(|url| url.expose_secret().to_owned());
    format!("{config:?} {url:?}")
}

#[test]
fn the_list_of_settings_is_that_of_the_file() {
    let tables = ["nodes", "limits", "brain", "loop"];
    let mut all: BTreeSet<String> = fields("").into_iter().filter(|field| field != "hands").collect();
    for table in tables {
        assert!(all.remove(table), "{table}");
        all.extend(fields(table).into_iter().map(|field| format!("{table}.{field}")));
    }
    assert_eq!(all, SETTINGS.iter().map(|setting| (*setting).to_owned()).collect());
    assert_eq!(OTHERS.map(|(setting, _)| setting), SETTINGS);
}

#[test]
fn every_setting_has_a_default_and_an_environment_name() {
    for (setting, value) in OTHERS {
        // It means nothing without a price.
        let price = (setting == "loop.cost").then_some(("MANYHANDS_LOOP_PRICE_INPUT", "2"));
        let read = |text: &str, set: Option<(&str, &str)>| {
            let environment: Vec<_> = price.into_iter().chain(set).collect();
            shown(&parse(text, &environment).unwrap())
        };
        let default = read("", None);
        let name = environment_name(setting);
        let set = read("", Some((&name, value)));
        assert_ne!(set, default, "{name}");
        assert_eq!(read("", Some((&name, ""))), default, "{name} is empty");
        // The file says the same, and the environment goes before it.
        let (table, key) = setting.rsplit_once('.').map_or(("", setting), |(table, key)| (table, key));
        let quoted = if value.starts_with('[') || value.parse::<u64>().is_ok() {
            value.to_owned()
        } else {
            format!("\"{value}\"")
        };
        let text = if table.is_empty() {
            format!("{key} = {quoted}")
        } else {
            format!("[{table}]\n{key} = {quoted}")
        };
        assert_eq!(read(&text, None), set, "{setting}");
        let number = if value == "3" { "5" } else { value };
        let both = read(&text, Some((&name, number)));
        assert_eq!(both, read("", Some((&name, number))), "{setting}");
    }
}

/// One sentence for each mistake, which says what to write instead.
#[test]
fn what_makes_no_sense_of_a_brain_is_said() {
    let said = |text: &str| parse(&format!("[brain]\n{text}"), &[]).unwrap_err().to_string();
    for (text, expected) in [
        ("provider = \"anthropic\"", "no model is chosen"),
        ("model = \"claude\"", "does not begin with a provider"),
        ("model = \"openai/\"", "does not begin with a provider"),
        ("model = \"openai/x\"\nkey_file = \"k\"\nkey_env = \"K\"", "keep one of the two"),
        ("model = \"openai/x\"\nkey_env = \"sk-HUNTER2\"", "not the key itself"),
        ("model = \"openai/x\"\nkey_file = \"sk-ant-HUNTER2HUNTER2HUNTER2\"", "looks like the key itself"),
        ("model = \"openai/x\"\nbase_url = \"ftp://x\"", "such as https://api.openai.com/v1"),
        ("model = \"anthropic/x\"\nbase_url = \"http://u:HUNTER2@x\"", "such as https://api.anthropic.com"),
        ("model = \"anthropic/x\"\nbase_url = \"http://x?a=b\"", "such as https://api.anthropic.com"),
        ("model = \"anthropic/x\"\napi = \"chat\"", "api means nothing to anthropic"),
        ("model = \"scripted/x\"\nbase_url = \"http://x\"", "base_url means nothing to scripted"),
        ("model = \"openai/x\"\ntoken_ms = 1", "token_ms means nothing to openai"),
        ("model = \"openai/x\"\nthinking = 2000", "\"low\", \"medium\" or \"high\""),
        (
            "model = \"anthropic/x\"\nthinking = 100",
            "thinking must be 1024 or more, and less than max_tokens",
        ),
        ("model = \"anthropic/x\"\nthinking = 20000", "less than max_tokens (16384), and is 20000"),
        (
            "model = \"anthropic/x\"\nthinking = \"much\"",
            "\"off\", \"low\", \"medium\", \"high\" or a number of tokens",
        ),
        ("max_tokens = 0", "max_tokens must be 1 to 1000000, and is 0"),
        ("silence_s = 0", "silence_s must be 1 to 3600, and is 0"),
        (
            "provider = \"gemini\"",
            "unknown variant `gemini`, expected one of `anthropic`, `openai`, `scripted`",
        ),
        ("api = \"assistants\"", "expected `chat` or `responses`"),
    ] {
        let said = said(text);
        assert!(said.contains(expected), "{text}: {said}");
        assert!(!said.contains("HUNTER2"), "{text}: {said}");
        assert_eq!(said.lines().count(), 1, "{text}: {said}");
    }
}

/// Which setting of which hand, and in which line it stands.
#[test]
fn a_mistake_in_a_hand_is_found_where_it_stands() {
    for (settings, expected) in [
        ("image = \"debian:12\"\nshell = \"fish\"", "line 4: hands.box.shell: unknown variant `fish`"),
        ("image = 5", "line 3: hands.box.image: invalid type: integer `5`, expected a string"),
        ("memory = \"1G\"\nimage = \"a\"", "line 3: hands.box.memory: unknown field `memory`"),
        ("image = \"a\"\nlimits = { cpus = \"two\" }", "line 4: hands.box.limits: "),
    ] {
        let text =
            format!("[hands.box]\nkind = \"container\"\n{settings}\n[hands.other]\nkind = \"sandbox\"\n");
        let said = parse(&text, &[]).unwrap_err().to_string();
        assert!(said.starts_with(&format!("manyhands.toml, {expected}")), "{said}");
    }
    let said = parse("[hands]\nhost = { kind = \"ssh\", host = \"a\",\n  port = 99999 }", &[]).unwrap_err();
    assert_eq!(
        said.to_string(),
        "manyhands.toml, line 3: hands.host.port: invalid value: integer `99999`, expected a whole number up to 65535"
    );
    let said =
        parse("[hands.host]\nkind = \"ssh\"\nhost = \"a:2222\"\nuser = \"u\"", &[]).unwrap_err().to_string();
    assert!(said.contains("--port"), "{said}");
    // What is wrong as a whole is told of the hand, and a wrong kind of its own line.
    let said = parse("\n[hands.box]\n\nkind = \"jail\"", &[]).unwrap_err().to_string();
    assert!(said.starts_with("manyhands.toml, line 4: unknown variant `jail`"), "{said}");
}

#[test]
fn a_brain_is_reached_where_its_provider_is_unless_somewhere_else_is_named() {
    let brain = |text: &str| parse(&format!("[brain]\n{text}"), &[]).unwrap().brain;
    let endpoint = |brain: &BrainSetting| match brain.resolve().unwrap().reach {
        Reach::Anthropic(endpoint) | Reach::OpenAi(endpoint, _) => endpoint,
        Reach::Scripted(..) => panic!("it is nowhere"),
    };
    let variable = |name: &str| Some(Source::Variable { env: name.to_owned(), prefix: String::new() });
    let own = brain("model = \"anthropic/claude-x\"");
    assert_eq!(own.resolve().unwrap().model, "claude-x");
    assert_eq!(endpoint(&own).base_url, "https://api.anthropic.com");
    assert_eq!(endpoint(&own).key, variable("ANTHROPIC_API_KEY"));
    // A key goes nowhere but where it was said to go.
    let local =
        brain("provider = \"openai\"\nmodel = \"org/model\"\nbase_url = \"http://127.0.0.1:11434/v1/\"");
    assert_eq!(local.resolve().unwrap().model, "org/model");
    assert_eq!(endpoint(&local).base_url, "http://127.0.0.1:11434/v1");
    assert_eq!(endpoint(&local).key, None);
    // Another model of the same provider stays there; another provider is at home.
    let other = local.with_model("openai/other").unwrap();
    assert_eq!(
        (endpoint(&other).base_url.as_str(), other.model.as_deref()),
        ("http://127.0.0.1:11434/v1", Some("other"))
    );
    let other = local.with_model("org/other").unwrap();
    assert_eq!(
        (endpoint(&other).base_url.as_str(), other.model.as_deref()),
        ("http://127.0.0.1:11434/v1", Some("org/other"))
    );
    let other = local.with_model("anthropic/claude-y").unwrap();
    assert_eq!(endpoint(&other).base_url, "https://api.anthropic.com");
    assert_eq!(endpoint(&other).key, variable("ANTHROPIC_API_KEY"));
    let file = brain("model = \"anthropic/x\"\nkey_file = \"keys/a\"");
    assert!(file.key_file.as_ref().unwrap().is_absolute(), "{file:?}");
}

#[test]
fn lists_may_be_words_between_commas() {
    let config = parse("", &[("MANYHANDS_ALLOWED_HOSTS", "a.example, b.example:1")]).unwrap();
    assert_eq!(config.allowed_hosts, ["a.example", "b.example:1"]);
    let config = parse("", &[("MANYHANDS_DATA", "123")]).unwrap();
    assert_eq!(config.data, Path::new("123"));
}

proptest! {
    /// Whatever stands in the environment or the file: a configuration or one line, never a panic, never a secret.
    #[test]
    fn nonsense_is_one_line(setting in 0..SETTINGS.len(), value in "\\PC{0,20}", text in "\\PC{0,40}") {
        let name = environment_name(SETTINGS[setting]);
        for parsed in [parse("", &[(&name, &value)]), parse(&text, &[]), parse(&format!("{} = {value}", SETTINGS[setting]), &[])] {
            if let Err(error) = parsed {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }

    #[test]
    fn a_password_in_the_file_is_never_shown(junk in "[a-z=\"\\[\\] \n]{0,12}", more in "[a-z=\"\\[\\] \n]{0,12}") {
        let text = format!("{junk}database_url = {more}\"postgres://u:HUNTER2@h/d\"{junk}");
        match parse(&text, &[]) {
            Ok(config) => {
                let debug = format!("{config:?}");
                prop_assert!(!debug.contains("HUNTER2"), "{}", debug);
            }
            Err(error) => prop_assert!(!error.to_string().contains("HUNTER2"), "{}", error),
        }
    }
}
