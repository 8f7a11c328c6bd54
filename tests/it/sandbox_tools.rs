//! The six tools, in a real sandbox.

use std::sync::Arc;

use base64::Engine;
use hands::{CallContext, Content, Ending, Hand};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::sandbox_kit::{News, Rig, context, seen};

#[tokio::test]
async fn bash_takes_input_folder_and_merges_output_in_order() {
    let rig = Rig::new();
    let seen = rig.call("bash", json!({"command": "cat; pwd", "stdin": "given\n", "cwd": "/tmp"})).await;
    assert_eq!(seen.text, "given\n/tmp\n");
    let big = "x".repeat(3_000_000);
    let seen = rig.call("bash", json!({"command": "wc -c", "stdin": big})).await;
    assert_eq!(seen.text, "3000000\n");
    // Input that nobody reads does no harm, to this call or the next.
    let seen = rig.call("bash", json!({"command": "echo done", "stdin": big})).await;
    assert_eq!(seen.text, "done\n");
    assert_eq!(rig.prints("for i in 1 2; do echo o$i; echo e$i >&2; done").await, "o1\ne1\no2\ne2");
    rig.prints("mkdir sub").await;
    assert_eq!(rig.call("bash", json!({"command": "pwd", "cwd": "sub"})).await.text, "/workspace/sub\n");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn bytes_that_are_not_utf8_are_shown_and_noted() {
    let rig = Rig::new();
    let seen = rig.bash("printf 'a\\377b\\303\\251\\n'").await;
    assert_eq!(seen.text, "a\u{fffd}b\u{e9}\n[bytes that are not UTF-8 are shown as \u{fffd}]");
    // A character that arrives in two pieces is whole.
    let news = Arc::new(News::default());
    let context =
        CallContext { progress: Arc::clone(&news) as _, ..CallContext::quiet(CancellationToken::new()) };
    let pieces =
        json!({"command": "printf '\\303'; sleep 0.3; printf '\\251'; sleep 0.3; printf '\\342\\202'"});
    let outcome = self::seen(rig.try_call("bash", pieces, context).await.unwrap());
    assert_eq!(outcome.text, "\u{e9}\u{fffd}\n[bytes that are not UTF-8 are shown as \u{fffd}]");
    assert_eq!(*news.0.lock().unwrap(), "\u{e9}");
    rig.prints("printf 'a\\377\\n' > odd").await;
    let read = rig.call("read", json!({"path": "odd"})).await;
    assert_eq!(read.text, "a\u{fffd}\n[bytes that are not UTF-8 are shown as \u{fffd}]");
    let edited = rig.call("edit", json!({"path": "odd", "old": "a", "new": "b"})).await;
    assert!(edited.text.contains("not UTF-8"), "{}", edited.text);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn read_shows_slices_images_and_says_what_it_cannot() {
    let rig = Rig::new();
    rig.prints("seq 5000 > numbers; printf 'no newline' > short; : > empty; mkdir folder; mkfifo pipe; printf 'a\\000b' > binary; ln -s nowhere dangling").await;
    for (arguments, expected) in [
        (json!({"path": "numbers", "limit": 2}), "1\n2\n[more follows: go on with offset 3]"),
        (json!({"path": "/workspace/numbers", "offset": 4999}), "4999\n5000\n"),
        (json!({"path": "./numbers", "offset": 4999, "limit": 2}), "4999\n5000\n"),
        (json!({"path": "numbers", "offset": 6000}), "[nothing from line 6000 on]"),
        (json!({"path": "short"}), "no newline"),
        (json!({"path": "empty"}), "[empty]"),
        (json!({"path": "folder"}), "/workspace/folder is a folder; list it with glob or `ls`."),
        (json!({"path": "missing"}), "/workspace/missing does not exist; look with glob or `ls`."),
        (json!({"path": "dangling"}), "/workspace/dangling does not exist; look with glob or `ls`."),
        (json!({"path": "pipe"}), "/workspace/pipe is not a regular file; use bash for devices and pipes."),
        (
            json!({"path": "binary"}),
            "/workspace/binary is binary; look at it with bash, such as `file` or `xxd`.",
        ),
    ] {
        assert_eq!(rig.call("read", arguments.clone()).await.text, expected, "{arguments}");
    }
    let all = rig.call("read", json!({"path": "numbers"})).await;
    assert!(all.text.ends_with("\n2000\n[more follows: go on with offset 2001]"));
    for (name, mime, bytes) in [
        (
            "a.png",
            "image/png",
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
        ),
        (
            "b",
            "image/jpeg",
            "/9j/4AAQSkZJRgABAQEAYABgAAD/2wBDAP//////////////////////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAACf/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AVN//2Q==",
        ),
    ] {
        rig.call("bash", json!({"command": format!("base64 -d > {name}"), "stdin": bytes})).await;
        let outcome = rig.try_call("read", json!({"path": name}), context()).await.unwrap();
        let expected = base64::engine::general_purpose::STANDARD.decode(bytes).unwrap();
        assert_eq!(outcome.content, [Content::Image { data: expected.into(), mime }]);
    }
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn write_is_whole_and_stays_inside() {
    let rig = Rig::new();
    let write = |path: &str, content: &str| {
        let arguments = json!({"path": path, "content": content});
        let rig = &rig;
        async move { rig.call("write", arguments).await }
    };
    assert_eq!(
        write("new/deep/file.txt", "text\n\n").await.text,
        "Wrote 6 bytes to /workspace/new/deep/file.txt."
    );
    assert_eq!(rig.prints("stat -c '%a %s' new/deep/file.txt; ls -A new/deep").await, "644 6\nfile.txt");
    rig.prints("printf '#!/bin/sh\\n' > run; chmod 755 run; ln -s run link; ln -s /tmp/elsewhere outside")
        .await;
    assert_eq!(write("link", "#!/bin/sh\necho hi\n").await.ending, Ending::Ok);
    assert_eq!(rig.prints("./run; readlink link").await, "hi\nrun");
    assert_eq!(write("outside", "x").await.ending, Ending::Ok, "/tmp may be written");
    assert_eq!(rig.prints("cat /tmp/elsewhere; rm outside").await, "x");
    rig.prints("ln -s /usr/share up; ln -s /etc/passwd secret; ln -s /usr/nothing dangling; mkdir folder; chmod 444 run").await;
    for (path, why) in [
        ("/etc/motd", "/etc/motd can't be written: only files below /workspace, /tmp can."),
        ("../etc/motd", "which is /etc/motd, can't be written"),
        ("/tmp/../usr/x", "which is /usr/x, can't be written"),
        ("up/x", "/workspace/up/x, which is /usr/share/x, can't be written"),
        ("secret", "which is /etc/passwd, can't be written"),
        ("dangling", "which is /usr/nothing, can't be written"),
        ("/workspacey", "can't be written"),
        ("/workspace", "can't be written"),
        ("folder", "is a folder"),
        ("run", "write-protected"),
        ("run/below", "Nothing was changed"),
    ] {
        let seen = write(path, "content").await;
        assert_eq!(seen.ending, Ending::Error, "{path}");
        assert!(seen.text.contains(why), "{path}: {}", seen.text);
    }
    let odd = "quote ' \" $(touch owned) `touch owned` \\ \u{e9}";
    assert_eq!(write(odd, odd).await.ending, Ending::Ok);
    assert_eq!(rig.call("read", json!({"path": odd})).await.text, odd);
    assert_eq!(rig.prints("ls owned 2>&1 | grep -c 'No such'").await, "1");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn edit_replaces_exactly_what_it_is_told() {
    let rig = Rig::new();
    rig.prints("printf 'one two two\\n' > file; chmod 640 file").await;
    for (old, new, all, expected) in [
        ("three", "3", false, "old does not occur in /workspace/file; read it and copy the text exactly."),
        (
            "two",
            "2",
            false,
            "old occurs 2 times in /workspace/file; give more of its surroundings, or set replace_all.",
        ),
        ("one", "one", false, "old and new are the same; there is nothing to change."),
        ("one", "1", false, "Replaced it once in /workspace/file."),
        ("two", "2", true, "Replaced it 2 times in /workspace/file."),
    ] {
        let arguments = json!({"path": "file", "old": old, "new": new, "replace_all": all});
        assert_eq!(rig.call("edit", arguments).await.text, expected);
    }
    assert_eq!(rig.prints("cat file; stat -c %a file").await, "1 2 2\n640");
    let outside = rig.call("edit", json!({"path": "/etc/passwd", "old": "hand:x", "new": "hand:"})).await;
    assert!(outside.text.contains("can't be written"), "{}", outside.text);
    let missing = rig.call("edit", json!({"path": "none", "old": "a", "new": "b"})).await;
    assert!(missing.text.contains("does not exist"), "{}", missing.text);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn glob_finds_the_newest_first() {
    let rig = Rig::new();
    rig.prints("mkdir -p src/deep .git; touch -d '2 hours ago' src/old.rs; touch -d '1 hour ago' src/deep/mid.rs; touch new.rs a.txt .git/x.rs 'odd\nname.rs'; ln -s /etc link.rs").await;
    for (pattern, path, expected) in [
        ("src/*.rs", None, "/workspace/src/old.rs"),
        ("src/**/*.rs", None, "/workspace/src/deep/mid.rs\n/workspace/src/old.rs"),
        ("m?d.{rs,c}", None, "/workspace/src/deep/mid.rs"),
        ("*.rs", Some("src/deep"), "/workspace/src/deep/mid.rs"),
        ("/workspace/src/o*", None, "/workspace/src/old.rs"),
        ("*.py", None, "[no file below /workspace matches *.py]"),
    ] {
        let seen = rig.call("glob", json!({"pattern": pattern, "path": path})).await;
        assert_eq!((seen.ending, seen.text.as_str()), (Ending::Ok, expected), "{pattern}");
    }
    let missing = rig.call("glob", json!({"pattern": "*", "path": "nowhere"})).await;
    assert_eq!(missing.ending, Ending::Error);
    assert!(missing.text.contains("No such file"), "{}", missing.text);
    rig.prints("mkdir many; cd many; touch $(seq 1500)").await;
    let many = rig.call("glob", json!({"pattern": "many/*"})).await;
    assert!(many.text.ends_with("[500 more; narrow the pattern]"), "{}", many.text);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn grep_finds_lines_files_and_counts() {
    let rig = Rig::new();
    rig.prints("mkdir d .git; printf 'alpha\\nBeta\\n' > d/one.txt; printf 'alpha beta\\n' > two.rs; cp two.rs .git/; printf '\\000alpha' > bin").await;
    for (arguments, expected) in [
        (json!({"pattern": "Beta"}), "/workspace/d/one.txt:2:Beta"),
        (json!({"pattern": "^al.*(ta|ha)$", "glob": "*.rs"}), "/workspace/two.rs:1:alpha beta"),
        (
            json!({"pattern": "beta", "ignore_case": true, "path": "d", "context": 1}),
            "/workspace/d/one.txt-1-alpha\n/workspace/d/one.txt:2:Beta",
        ),
        (json!({"pattern": "alpha", "path": "two.rs", "output": "count"}), "/workspace/two.rs:1"),
        (json!({"pattern": "Beta", "output": "files"}), "/workspace/d/one.txt"),
        (json!({"pattern": "gamma"}), "[nothing below /workspace matches]"),
        (json!({"pattern": "-v"}), "[nothing below /workspace matches]"),
    ] {
        let seen = rig.call("grep", arguments.clone()).await;
        assert_eq!((seen.ending, seen.text.as_str()), (Ending::Ok, expected), "{arguments}");
    }
    let missing = rig.call("grep", json!({"pattern": "x", "path": "nowhere"})).await;
    assert_eq!(missing.ending, Ending::Error);
    rig.prints("yes 'a long line to be found' | head -c 3000000 > big").await;
    let big = rig.call("grep", json!({"pattern": "found"})).await;
    assert!(big.text.ends_with("[more than 1 MiB found; narrow the search]"));
    rig.hand.shutdown().await;
}
