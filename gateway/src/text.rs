//! Text that others wrote, made fit to be shown to a person: what would steer a terminal is escaped, and what is long is
//! shortened in its middle.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Which characters of the layout a text may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// None: it is one line, or a part of one.
    Line,
    /// Line feeds, alone or behind a carriage return, and tabs.
    Lines,
}

/// The text with every character escaped that a terminal would obey or hide, such as `\x1b` and `\u{202e}`.
pub fn escaped(text: &str, layout: Layout) -> Cow<'_, str> {
    if !text.chars().any(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    push_escaped(&mut shown, text, layout);
    Cow::Owned(shown)
}

fn push_escaped(shown: &mut String, text: &str, layout: Layout) {
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let stays = match (layout, c) {
            (Layout::Lines, '\n' | '\t') => true,
            // Alone it would overwrite its line.
            (Layout::Lines, '\r') => rest.peek() == Some(&'\n'),
            _ => !is_unfit(c),
        };
        if stays { shown.push(c) } else { push_escape(shown, c) }
    }
}

fn push_escape(shown: &mut String, c: char) {
    let code = u32::from(c);
    // Writing into a string does not fail.
    let _ = match c {
        '\n' => shown.write_str("\\n"),
        '\r' => shown.write_str("\\r"),
        '\t' => shown.write_str("\\t"),
        _ if code <= 0xff => write!(shown, "\\x{code:02x}"),
        _ => write!(shown, "\\u{{{code:x}}}"),
    };
}

/// Whether a terminal would obey the character or hide it: controls, separators of lines, marks and overrides of
/// direction, and what has no width. Joiners stay: scripts and emoji need them.
fn is_unfit(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Escapes a text that comes in pieces, as [`Layout::Lines`].
#[derive(Debug, Default)]
pub struct Pieces {
    /// The last piece ended with a carriage return, and it is not known yet whether a line feed follows.
    returned: bool,
}

impl Pieces {
    /// The next piece, escaped.
    pub fn next(&mut self, piece: &str) -> String {
        let mut whole = if std::mem::take(&mut self.returned) { "\r".to_owned() } else { String::new() };
        whole.push_str(piece);
        if whole.ends_with('\r') {
            self.returned = true;
            whole.pop();
        }
        escaped(&whole, Layout::Lines).into_owned()
    }

    /// What was held back, at the end of the text.
    pub fn end(&mut self) -> &'static str {
        if std::mem::take(&mut self.returned) { "\\r" } else { "" }
    }
}

/// The text; of one with more than `head + tail` characters its first and last ones, and how many lie between.
pub fn shortened(text: &str, head: usize, tail: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= head + tail {
        return Cow::Borrowed(text);
    }
    let place = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let (first, last) = (&text[..place(head)], &text[place(length - tail)..]);
    Cow::Owned(format!("{first} … {} characters between … {last}", grouped(length - head - tail)))
}

/// A number with a space between thousands.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(' ');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_steers_a_terminal_is_escaped() {
        let steering = "\u{1b}]52;c;aGk=\u{7}a\u{9b}2J\u{7f}\u{0}\u{202e}b\u{2066}\u{200e}\u{200f}\u{61c}\u{2028}\u{feff}";
        let shown =
            r"\x1b]52;c;aGk=\x07a\x9b2J\x7f\x00\u{202e}b\u{2066}\u{200e}\u{200f}\u{61c}\u{2028}\u{feff}";
        assert_eq!(escaped(steering, Layout::Line), shown);
        assert_eq!(escaped(steering, Layout::Lines), shown);
        let hidden = "ec\u{ad}ho\u{34f}\u{115f}\u{2800}\u{3164}\u{180e}\u{1d173}\u{e0100}";
        assert!(escaped(hidden, Layout::Line).is_ascii(), "{}", escaped(hidden, Layout::Line));
        for code in 0..=u32::from(char::MAX) {
            let Some(c) = char::from_u32(code) else { continue };
            let shown = escaped(c.encode_utf8(&mut [0; 4]), Layout::Line).into_owned();
            assert!(!shown.chars().any(is_unfit), "{code:x}");
            // Letters of Hangul that show nothing.
            let filler = matches!(c, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}');
            assert!(filler || !c.is_alphanumeric() || shown == c.to_string(), "{code:x}");
        }
    }

    #[test]
    fn the_layout_says_what_may_stay() {
        assert_eq!(escaped("a\tb\r\nc\rd\n", Layout::Lines), "a\tb\r\nc\\rd\n");
        assert_eq!(escaped("a\tb\r\nc\rd\n", Layout::Line), r"a\tb\r\nc\rd\n");
        // What families and Persian are written with stays.
        let joined = "\u{1f468}\u{200d}\u{1f469} \u{645}\u{6cc}\u{200c}";
        assert_eq!(escaped(joined, Layout::Line), joined);
    }

    #[test]
    fn a_sequence_over_two_pieces_is_escaped_and_a_line_break_stays() {
        let shown = |pieces: &[&str]| {
            let mut state = Pieces::default();
            let mut shown: String = pieces.iter().map(|piece| state.next(piece)).collect();
            shown.push_str(state.end());
            shown
        };
        assert_eq!(shown(&["a\u{1b}", "]0;title", "\u{7}"]), r"a\x1b]0;title\x07");
        assert_eq!(shown(&["a\r", "\nb", "\r", "c"]), "a\r\nb\\rc");
        assert_eq!(shown(&["a\r", "", "\n", "b\r"]), "a\r\nb\\r");
    }

    #[test]
    fn head_and_tail_of_what_is_long_are_shown() {
        assert_eq!(shortened("abcdef", 3, 3), "abcdef");
        let long = format!("ls{}; rm", "ä".repeat(1_234));
        assert_eq!(shortened(&long, 2, 4), "ls … 1 234 characters between … ; rm");
        assert_eq!(
            ["1", "12", "123", "1 234", "12 345 678"],
            [1, 12, 123, 1_234, 12_345_678].map(grouped)[..]
        );
    }
}
