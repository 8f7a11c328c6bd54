//! Keys: where they come from, and that they go nowhere but into one header.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use gateway::brain::BrainSetting;
use gateway::harness::model::{Again, Block, ModelError};
use serde_json::json;
use tests::models::{Canned, KEY, Models};

use super::{ALL, Client, Spoken, prompt, setting};

#[tokio::test]
async fn a_key_stands_in_one_header_and_nowhere_else() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        Client::new(&server, spoken).thought(&prompt("@say Hello")).await;
        let seen = server.seen().pop().unwrap();
        let (name, value) = match spoken {
            Spoken::Messages => ("x-api-key", KEY.to_owned()),
            Spoken::Chat | Spoken::Responses => ("authorization", format!("Bearer {KEY}")),
        };
        assert_eq!(seen.headers[name], value, "{spoken:?}");
        let holders = seen.headers.values().filter(|value| value.to_str().unwrap().contains(KEY)).count();
        assert_eq!(holders, 1, "{spoken:?}");
        assert!(!seen.body.to_string().contains(KEY), "{spoken:?}");
    }
}

/// The file is read with each request, and only when nobody else can read it.
#[tokio::test]
async fn a_key_file_is_for_its_owner_alone() {
    let server = Models::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let of_file =
        BrainSetting { key_env: None, key_file: Some(file.clone()), ..setting(&server, Spoken::Messages) };
    let client = Client::of(&of_file);
    let missing = client.error(&prompt("Hello")).await;
    assert!(matches!(&missing, ModelError::NoKey { why } if why.contains("can't be read")), "{missing}");
    fs::write(&file, format!("{KEY}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let open = client.error(&prompt("Hello")).await;
    assert!(matches!(&open, ModelError::NoKey { why } if why.contains("chmod 600")), "{open}");
    assert_eq!(open.again(), Again::Pointless);
    assert!(server.seen().is_empty(), "nothing was sent");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(client.thought(&prompt("@say Hello")).await.blocks, [Block::text("Hello")]);
    // Another key, from now on.
    fs::write(&file, "sk-another-key").unwrap();
    let wrong = client.error(&prompt("Hello")).await;
    let place = file.display().to_string();
    assert_eq!(wrong, ModelError::BadKey { status: 401, place: place.clone() });
    assert!(wrong.to_string().contains(&place), "{wrong}");
    fs::write(&file, "two\nlines").unwrap();
    assert!(client.error(&prompt("Hello")).await.to_string().contains("not one line of text"));
}

#[tokio::test]
async fn a_variable_that_is_not_there_is_named() {
    let server = Models::start().await.unwrap();
    let missing = BrainSetting { key_env: Some("NO_SUCH_KEY".to_owned()), ..setting(&server, Spoken::Chat) };
    let error = Client::of(&missing).error(&prompt("Hello")).await;
    assert!(matches!(&error, ModelError::NoKey { why } if why.contains("NO_SUCH_KEY")), "{error}");
    // Where nothing is said of a key, none is sent: most local servers want none.
    let without = BrainSetting { key_env: None, ..setting(&server, Spoken::Chat) };
    server.answer_next(Canned::events(
        "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: [DONE]\n\n",
    ));
    assert_eq!(Client::of(&without).thought(&prompt("Hello")).await.blocks, [Block::text("Hi")]);
    assert!(server.seen().pop().unwrap().headers.get("authorization").is_none());
    let refused = Client::of(&without).error(&prompt("Hello")).await;
    assert!(refused.to_string().contains("key_file or key_env"), "{refused}");
}

/// A provider that repeats the key in what it says.
#[tokio::test]
async fn no_error_holds_the_key() {
    let server = Models::start().await.unwrap();
    let said = format!("the key {KEY} is strange");
    for spoken in ALL {
        let client = Client::new(&server, spoken);
        for canned in [
            Canned::json(400, &json!({"error": {"type": "invalid_request_error", "message": said}})),
            Canned::of(500, "text/plain", &said),
            Canned::of(200, &said, ""),
            Canned::of(301, "text/plain", &said),
            Canned::json(401, &json!({"error": said})),
            Canned::events(&format!(
                "data: {}\n\n",
                json!({"type": "error", "error": {"type": "api_error", "message": said}})
            )),
            Canned::events(&format!("data: {said}\n\n")),
            Canned::events(&format!("data: {}\n\n", json!({"type": "content_block_stop", "index": said}))),
            // Cut off in the middle of it.
            Canned::of(500, "text/plain", &format!("{}{KEY}", "x".repeat(300 - KEY.len() / 2))),
        ] {
            server.answer_next(canned);
            let error = client.error(&prompt("Hello")).await;
            assert!(!format!("{error} {error:?}").contains("sk-test"), "{spoken:?}: {error}");
        }
    }
}
