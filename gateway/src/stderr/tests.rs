//! The queue with a reader that is told when to read.

use std::sync::mpsc;
use std::time::Instant;

use super::*;

/// A reader that takes a line whenever it is told to.
struct Reader {
    go_on: mpsc::Sender<()>,
    read: mpsc::Receiver<String>,
}

fn queue() -> (Queue, Reader) {
    let ((go_on, may), (write, read)) = (mpsc::channel(), mpsc::channel());
    let queue = Queue::start(move |line| {
        if may.recv().is_ok() {
            let _ = write.send(String::from_utf8_lossy(line).into_owned());
        }
    });
    (queue, Reader { go_on, read })
}

impl Reader {
    fn line(&self) -> String {
        self.go_on.send(()).unwrap();
        self.read.recv_timeout(Duration::from_mins(1)).unwrap()
    }
}

#[test]
fn lines_that_do_not_fit_are_dropped_and_their_count_is_said() {
    let (queue, reader) = queue();
    let begun = Instant::now();
    for n in 0..1_000 {
        queue.push(format!("{n:01023}\n").into_bytes());
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits for the reader");
    let kept = WAITING_MAX / 1024;
    assert_eq!(queue.0.lock().bytes, WAITING_MAX);
    for n in 0..kept {
        assert_eq!(reader.line(), format!("{n:01023}\n"));
        // It goes on being said, and is not taken while the count is owed.
        if n == 10 {
            queue.push(b"one more\n".to_vec());
        }
    }
    let dropped = 1_000 - kept + 1;
    assert_eq!(reader.line(), format!("{dropped} log lines were dropped: standard error was not read\n"));
    queue.push(b"again\n".to_vec());
    assert_eq!(reader.line(), "again\n");
}

#[test]
fn waiting_ends_with_the_last_line_or_its_time() {
    let (queue, reader) = queue();
    queue.wait(Duration::from_mins(1));
    queue.push(b"line\n".to_vec());
    let begun = Instant::now();
    queue.wait(Duration::from_millis(100));
    assert!((100..10_000).contains(&begun.elapsed().as_millis()));
    assert_eq!(reader.line(), "line\n");
    queue.wait(Duration::from_mins(1));
    assert_eq!(queue.0.lock().bytes, 0);
}
