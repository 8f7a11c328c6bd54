//! Telling what a call prints from what its wrapper says about it, on one stream.

/// Says `cwd` where it can't work in the folder `$3`, else `run` and its process id; runs the rest in the way that
/// `$2` says; then says `\2`, the token `$1` and the exit code. Standard output stays open behind a `cat` as long as a
/// background process has it, so that none is stopped by what became of the call.
pub(super) const WRAPPER: &str = r#"
token=$1 streams=$2
cd -- "$3" 2> /dev/null || { echo cwd; exit 0; }
shift 3
echo "run $$"
if [ "$streams" = merged ]; then
  { "$@" 2>&1; printf '\002%s %s\n' "$token" $?; } | cat
else
  "$@"
  printf '\002%s %s\n' "$token" $?
fi
"#;

/// Longest word of a wrapper about the start, in bytes. What is longer is an error of the daemon's.
const MOST_START: usize = 32;
/// Longest exit code, in bytes, with the line's end.
const MOST_CODE: usize = 8;

/// What a stream turned out to say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The wrapper runs, as this process.
    Started(u32),
    /// The working folder can't be used.
    NoFolder,
    /// The call printed this.
    Printed(Vec<u8>),
    /// It ended with this exit code.
    Ended(i32),
}

/// Reads standard output as it comes.
pub(super) struct Scan {
    mark: Vec<u8>,
    /// What can't be told yet.
    held: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    Printing,
    Code,
    Over,
}

impl Scan {
    /// For the call with this token.
    pub(super) fn new(token: &str) -> Self {
        let mark = [b"\x02", token.as_bytes(), b" "].concat();
        Self { mark, held: Vec::new(), state: State::Starting }
    }

    /// Takes some bytes and says what they mean.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.held.extend_from_slice(bytes);
        let mut said = Vec::new();
        while let Some(next) = self.next() {
            said.push(next);
        }
        said
    }

    /// What came instead of a start, when the stream is over.
    pub(super) fn failure(&self) -> Option<String> {
        (self.state == State::Starting).then(|| String::from_utf8_lossy(&self.held).trim().to_owned())
    }

    fn next(&mut self) -> Option<Said> {
        match self.state {
            State::Starting => self.start(),
            State::Printing => self.print(),
            State::Code => {
                let end = self.held.iter().take(MOST_CODE).position(|byte| *byte == b'\n')?;
                let code = std::str::from_utf8(&self.held[..end]).ok()?.parse().ok()?;
                self.state = State::Over;
                Some(Said::Ended(code))
            }
            State::Over => None,
        }
    }

    fn start(&mut self) -> Option<Said> {
        let end = self.held.iter().take(MOST_START).position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&self.held[..end]).into_owned();
        if line == "cwd" {
            self.state = State::Over;
            return Some(Said::NoFolder);
        }
        let pid = line.strip_prefix("run ")?.parse().ok()?;
        self.held.drain(..=end);
        self.state = State::Printing;
        Some(Said::Started(pid))
    }

    /// All that is certainly not the beginning of the mark.
    fn print(&mut self) -> Option<Said> {
        let mut from = 0;
        let certain = loop {
            let Some(at) = self.held[from..].iter().position(|byte| *byte == self.mark[0]) else {
                break self.held.len();
            };
            let at = from + at;
            let rest = &self.held[at..];
            if rest.starts_with(&self.mark) {
                if at == 0 {
                    self.held.drain(..self.mark.len());
                    self.state = State::Code;
                    return self.next();
                }
                break at;
            }
            if self.mark.starts_with(rest) {
                break at;
            }
            from = at + 1;
        };
        (certain > 0).then(|| Said::Printed(self.held.drain(..certain).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_told_from_the_wrapper_however_it_is_cut() {
        let whole = b"run 17\nab\x02\x02tok\x02token 12\n".as_slice();
        for cut in 0..whole.len() {
            let mut scan = Scan::new("token");
            let mut printed = Vec::new();
            let mut rest = Vec::new();
            for said in scan.take(&whole[..cut]).into_iter().chain(scan.take(&whole[cut..])) {
                match said {
                    Said::Printed(bytes) => printed.extend(bytes),
                    other => rest.push(other),
                }
            }
            assert_eq!(printed, b"ab\x02\x02tok", "cut at {cut}");
            assert_eq!(rest, [Said::Started(17), Said::Ended(12)], "cut at {cut}");
        }
    }

    #[test]
    fn an_error_instead_of_a_start_is_kept() {
        let mut scan = Scan::new("token");
        assert_eq!(scan.take(b"OCI runtime exec failed: no such file or directory\n"), []);
        assert!(scan.failure().is_some_and(|failure| failure.starts_with("OCI runtime")));
    }
}
