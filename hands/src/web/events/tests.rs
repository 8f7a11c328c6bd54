//! Streams as good, careless and hostile servers write them, cut anywhere.

use proptest::prelude::*;

use super::*;

/// The events of a stream that comes in these pieces.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Sse> {
    let mut parser = Parser::new(1 << 20);
    let mut events = Vec::new();
    for piece in pieces {
        let mut piece = Bytes::copy_from_slice(piece);
        while let Some(event) = parser.feed(&mut piece).unwrap() {
            events.push(event);
        }
        assert!(piece.is_empty());
    }
    events
}

fn data(text: &str) -> Sse {
    Sse { data: Some(text.to_owned()), ..Sse::default() }
}

#[test]
fn streams_are_read_as_the_standard_says() {
    let with_id = |id: &str, text: &str| Sse { id: Some(id.to_owned()), ..data(text) };
    for (stream, events) in [
        ("data: a\n\ndata: b\r\n\r\ndata: c\r\r", vec![data("a"), data("b"), data("c")]),
        ("data: a\r\n\ndata: b\n\r\ndata: c\r\n\r", vec![data("a"), data("b"), data("c")]),
        ("\u{feff}data: a\n\n\u{feff}data: b\n\n", vec![data("a")]),
        ("data: a\ndata\ndata:\ndata:  b\n\n", vec![data("a\n\n\n b")]),
        ("data\n\n", vec![data("")]),
        (": a comment\n:\n\n\n\r\ndata: a\n\n", vec![data("a")]),
        ("unknown: x\nno colon\nDATA: x\ndata : x\n data: x\ndata: a\n\n", vec![data("a")]),
        ("event: message\nid: 1\ndata: {\"a\": 1}\n\n", vec![with_id("1", "{\"a\": 1}")]),
        ("id: 1\nid\ndata: a\n\n", vec![with_id("", "a")]),
        ("id: 1\nid: a\0b\ndata: a\n\n", vec![with_id("1", "a")]),
        ("id: 7\n\n", vec![Sse { id: Some("7".to_owned()), ..Sse::default() }]),
        ("retry: 10\ndata: \n\n", vec![Sse { retry: Some(10), ..data("") }]),
        ("retry: 1s\nretry: -1\nretry\nretry: 99999999999999999999\ndata: a\n\n", vec![data("a")]),
        ("data: a\n\ndata: it ends before its end\n", vec![data("a")]),
        ("", vec![]),
    ] {
        assert_eq!(read([stream.as_bytes()]), events, "{stream:?}");
        assert_eq!(read(stream.as_bytes().chunks(1)), events, "{stream:?}, byte by byte");
    }
}

#[test]
fn what_is_no_utf8_is_replaced() {
    assert_eq!(read([&b"data: a\xffb\n\n"[..]]), [data("a\u{fffd}b")]);
}

#[test]
fn what_is_too_large_is_refused_and_quiet_streams_go_on_for_ever() {
    for stream in ["data: 0123456789\n\n", "data: 01234\ndata: 56789\n\n", ":012345678901234567\n", "x"] {
        let mut parser = Parser::new(14);
        let mut bytes = Bytes::from(stream.repeat(if stream == "x" { 15 } else { 1 }));
        assert_eq!(parser.feed(&mut bytes), Err(TooLarge), "{stream:?}");
    }
    let mut parser = Parser::new(14);
    assert_eq!(parser.feed(&mut Bytes::from(": alive\n\n".repeat(100))), Ok(None));
    assert_eq!(parser.feed(&mut Bytes::from("data: 012345\n\n")), Ok(Some(data("012345"))));
}

fn lines() -> impl Strategy<Value = String> {
    let name = prop_oneof![Just("data"), Just("id"), Just("retry"), Just("event"), Just(""), Just("other")];
    let value = prop_oneof!["[0-9]{1,4}", "[a-z日é👩 :\u{feff}]{0,12}"];
    let colon = prop_oneof![Just(": "), Just(":"), Just("")];
    let end = prop_oneof![Just("\n"), Just("\r"), Just("\r\n")];
    let field = (name, colon, value, end.clone()).prop_map(|(a, b, c, d)| format!("{a}{b}{c}{d}"));
    let blank = end.prop_map(str::to_owned);
    proptest::collection::vec(prop_oneof![2 => field, 1 => blank], 0..40).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_events(stream in lines(), cuts in proptest::collection::vec(1_usize..9, 1..200)) {
        let stream = stream.as_bytes();
        let (mut rest, mut pieces) = (stream, Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, others) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = others;
        }
        prop_assert_eq!(read(pieces), read([stream]));
    }

    #[test]
    fn any_event_that_is_written_is_read(texts in proptest::collection::vec("[^\r]{0,40}", 0..10)) {
        let stream: String = texts
            .iter()
            .map(|text| format!("data: {}\n\n", text.replace('\n', "\ndata: ")))
            .collect();
        let events: Vec<_> = texts.iter().map(|text| data(text)).collect();
        prop_assert_eq!(read([stream.as_bytes()]), events);
    }
}
