//! `manyhands doctor`: what this machine can offer, and the one thing to do about each lack.

use std::path::Path;
use std::process::ExitCode;

use hands::sandbox::{Finding, SandboxConfig, State, inspect};
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::control::{Found, answering};
use super::terminal::{self, note, say};
use super::{Output, Setting};
use crate::brain::{BrainSetting, Reach};
use crate::config::{Config, Question, variable};
use crate::hand::{Ground, HandConfig, HandName};
use crate::serve;

pub(super) async fn run(setting: &Setting, unasked: Option<&Question>) -> anyhow::Result<ExitCode> {
    let mut config = SandboxConfig::new(std::env::current_exe()?);
    config.limits.free_disk = setting.config.limits.free_disk();
    let mut lines: Vec<Line> =
        inspect(&config, there(&setting.config.data)).into_iter().map(Line::of).collect();
    lines.extend(database(&setting.config));
    lines.extend(unasked.map(waits));
    lines.extend(gateway_waits(&setting.config.data).await);
    lines.extend(brain(&setting.config.brain));
    let ground = serve::ground(&setting.config);
    for (name, hand) in &setting.config.hands {
        let mut hand = hand.clone();
        hand.make_canonical(&[])?;
        let hand = &hand;
        lines.extend(server(name, hand));
        lines.extend(answers(name, hand).await);
        lines.extend(looked(name, hand, &ground).await);
    }
    match setting.output {
        Output::Json => terminal::json(lines.iter().map(shown).collect::<serde_json::Value>())?,
        Output::Text => lines.iter().try_for_each(print)?,
    }
    let missing = lines.iter().any(|line| line.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A configuration in the current folder that was not read.
fn waits(question: &Question) -> Line {
    Line {
        subject: "configuration".to_owned(),
        state: State::Missing,
        found: format!(
            "{} says what needs your yes ({}), and is not read",
            question.file.display(),
            question.settings()
        ),
        remedy: Some(format!("look at it and type `{}`, or name it with --config", question.command())),
    }
}

/// What the running gateway's configuration says now and a person has to be asked before.
async fn gateway_waits(data: &Path) -> Option<Line> {
    let Ok(Some(Found::There { about, .. })) = answering(data).await else { return None };
    let found = about["waits"].as_str()?.to_owned();
    let subject = "the running gateway's configuration".to_owned();
    Some(Line { subject, state: State::Missing, found, remedy: None })
}

/// One thing that was looked at.
struct Line {
    subject: String,
    state: State,
    found: String,
    remedy: Option<String>,
}

impl Line {
    fn of(finding: Finding) -> Self {
        let Finding { subject, state, found, remedy } = finding;
        Self { subject: subject.to_owned(), state, found, remedy }
    }
}

/// Whether the server of a hand in the file can be tried: its program is there, and the files of its values.
fn server(name: &HandName, hand: &HandConfig) -> Option<Line> {
    let HandConfig::Mcp(settings) = hand else { return None };
    let path = variable("PATH").map(|path| path.expose_secret().to_owned()).unwrap_or_default();
    let (state, found, remedy) = match settings.find(&path) {
        Ok(found) => (State::Fine, found, None),
        Err((why, remedy)) => (State::Missing, why, Some(remedy)),
    };
    Some(Line { subject: format!("hand {name}"), state, found, remedy })
}

/// Whether the server of a hand in the file answers, where it is one that is there without us.
async fn answers(name: &HandName, hand: &HandConfig) -> Option<Line> {
    let HandConfig::Mcp(settings) = hand else { return None };
    settings.url.as_ref()?;
    let line = match settings.resolve(name, variable) {
        Ok(config) => Line::of(hands::upstream::inspect(config).await),
        Err(error) => Line::of(Finding {
            subject: "server",
            state: State::Missing,
            found: error.to_string(),
            remedy: Some("correct its settings".to_owned()),
        }),
    };
    Some(Line { subject: format!("hand {name}, {}", line.subject), ..line })
}

/// Whether the database gives back the space of what is deleted, where there is one.
fn database(config: &Config) -> Option<Line> {
    let (state, found, remedy) = if serve::is_given_back(config)? {
        (State::Fine, "gives back the space of what is deleted", None)
    } else {
        let remedy = "free twice its size on its disk and start the gateway again: it converts it";
        (State::Weaker, "keeps the space of what is deleted", Some(remedy.to_owned()))
    };
    Some(Line { subject: "database".to_owned(), state, found: found.to_owned(), remedy })
}

/// Whether the model that is chosen has its key. Nobody is asked whether it is a good one.
fn brain(setting: &BrainSetting) -> Option<Line> {
    let line = |state, found: String, remedy: Option<String>| {
        Some(Line { subject: "brain".to_owned(), state, found, remedy })
    };
    // Where none is chosen there are brains enough outside.
    let brain = setting.resolve().ok()?;
    let (Reach::Anthropic(endpoint) | Reach::OpenAi(endpoint, _)) = brain.reach else {
        return line(State::Fine, "the scripted model".to_owned(), None);
    };
    let (model, url) = (&brain.model, &endpoint.base_url);
    let Some(key) = &endpoint.key else {
        return line(State::Fine, format!("{model} at {url}, without a key"), None);
    };
    match key.read(variable) {
        Err(why) => {
            let remedy =
                "set key_file under [brain] to a file that only you can read, or key_env to a variable";
            line(State::Missing, format!("there is no key for {model}: {why}"), Some(remedy.to_owned()))
        }
        Ok(_) if endpoint.is_open() => line(
            State::Weaker,
            format!("the key for {model} goes to {url} as anybody on the way can read it"),
            Some("set base_url under [brain] to https://".to_owned()),
        ),
        Ok(_) => line(State::Fine, format!("{model} at {url}, with the key in {}", key.place()), None),
    }
}

/// Says on stderr what a hand that was just added lacks where it is to be.
pub(super) async fn warn(name: &HandName, hand: &HandConfig, ground: &Ground) {
    let mut hand = hand.clone();
    if hand.make_canonical(&[]).is_err() {
        return;
    }
    let lines = looked(name, &hand, ground).await;
    for line in lines.into_iter().filter(|line| line.state == State::Missing) {
        note(format_args!("{:<8} {}: {}", state(line.state), line.subject, line.found));
        if let Some(remedy) = line.remedy {
            note(format_args!("         → {remedy}"));
        }
    }
}

/// What the hand of another kind finds where it is to be.
async fn looked(name: &HandName, hand: &HandConfig, ground: &Ground) -> Vec<Line> {
    let findings = match hand {
        // The machine's part was looked at, and so was the server.
        HandConfig::Sandbox(_) | HandConfig::Mcp(_) => Ok(Vec::new()),
        HandConfig::Container(settings) => match settings.resolve(ground) {
            Ok(config) => Ok(hands::container::inspect(&config).await),
            Err(error) => Err(error),
        },
        HandConfig::Ssh(settings) => match settings.resolve(ground) {
            Ok(config) => Ok(hands::ssh::inspect(&config).await),
            Err(error) => Err(error),
        },
        HandConfig::Android(settings) => match settings.resolve() {
            Ok(config) => Ok(hands::android::inspect(&config).await),
            Err(error) => Err(error),
        },
        HandConfig::Emulator(settings) => match settings.resolve(ground) {
            Ok(config) => Ok(hands::emulator::inspect(&config).await),
            Err(error) => Err(error),
        },
        HandConfig::Vm(settings) => match settings.resolve(ground) {
            Ok(config) => Ok(hands::vm::inspect(&config).await),
            Err(error) => Err(error),
        },
    };
    let of = |subject: &str| format!("hand {name}, {subject}");
    match findings {
        Ok(findings) => findings
            .into_iter()
            .map(|finding| {
                let line = Line::of(finding);
                Line { subject: of(&line.subject), ..line }
            })
            .collect(),
        Err(error) => {
            let remedy = Some("correct its settings".to_owned());
            vec![Line { subject: of("settings"), state: State::Missing, found: error.to_string(), remedy }]
        }
    }
}

/// The directory, or before the first start the one that it will be made in.
fn there(data: &Path) -> &Path {
    data.ancestors().find(|path| path.exists()).unwrap_or(data)
}

fn state(state: State) -> &'static str {
    match state {
        State::Fine => "ok",
        State::Weaker => "weaker",
        State::Missing => "missing",
    }
}

fn shown(finding: &Line) -> serde_json::Value {
    json!({
        "subject": finding.subject,
        "state": state(finding.state),
        "found": finding.found,
        "remedy": finding.remedy,
    })
}

fn print(finding: &Line) -> std::io::Result<()> {
    say(format_args!("{:<8} {}: {}", state(finding.state), finding.subject, finding.found))?;
    match &finding.remedy {
        Some(remedy) => say(format_args!("         → {remedy}")),
        None => Ok(()),
    }
}
