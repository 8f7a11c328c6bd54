//! What servers are free to do, and the real ones do rarely: on a line to a shell of this machine.

use std::process::Stdio;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};
use tokio_util::io::ReaderStream;

use super::*;
use crate::{Content, Ending, Owner};

/// When the exit of a command is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Exit {
    /// After all that the command said.
    #[default]
    Last,
    /// Before all that it said once it had begun.
    First,
}

/// A line to this machine.
#[derive(Default)]
struct Here {
    /// How the channels tell that a command ended that are opened from now on.
    exit: Mutex<Exit>,
    gone: CancellationToken,
    tasks: TaskTracker,
}

#[async_trait]
impl Line for Here {
    async fn open(&self) -> Result<(Box<dyn Writer>, Box<dyn Reader>), OpenError> {
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", script::COMMAND]).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| OpenError::Refused(error.to_string()))?;
        let input = Input(child.stdin.take());
        let (sender, events) = mpsc::unbounded_channel();
        let exit = *self.exit.lock().unwrap();
        self.tasks.spawn(tell(child, exit, self.gone.clone(), sender));
        Ok((Box::new(input), Box::new(Output(events))))
    }

    async fn fence(&self) {
        std::future::pending::<()>().await;
    }

    fn tail(&self) -> Tail {
        Tail::Channel
    }

    async fn close(&self) {
        self.gone.cancel();
    }

    fn why_broken(&self) -> Option<String> {
        None
    }
}

/// None once it is finished.
struct Input(Option<ChildStdin>);

#[async_trait]
impl Writer for Input {
    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        let Some(input) = &mut self.0 else { return Err(io::ErrorKind::BrokenPipe.into()) };
        input.write_all(&bytes).await?;
        input.flush().await
    }

    async fn finish(&mut self) -> io::Result<()> {
        drop(self.0.take());
        Ok(())
    }
}

struct Output(mpsc::UnboundedReceiver<Event>);

#[async_trait]
impl Reader for Output {
    async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

/// Tells all that comes of a command. What it says first lets it begin, so that is never held back.
async fn tell(mut child: Child, exit: Exit, gone: CancellationToken, events: mpsc::UnboundedSender<Event>) {
    let (Some(output), Some(error)) = (child.stdout.take(), child.stderr.take()) else { return };
    let output = ReaderStream::new(output).map_ok(Event::Output);
    let mut said = stream::select(output, ReaderStream::new(error).map_ok(Event::Error));
    let (mut begun, mut held) = (false, Vec::new());
    while let Some(Some(Ok(said))) = gone.run_until_cancelled(said.next()).await {
        if exit == Exit::First && begun {
            held.push(said);
        } else {
            begun = true;
            let _ = events.send(said);
        }
    }
    let code = child.wait().await.ok().and_then(|status| status.code());
    let _ = events.send(Event::Exit(code.unwrap_or(128)));
    for said in held.into_iter().chain([Event::End]) {
        let _ = events.send(said);
    }
}

/// RFC 4254, 6.10, sets no order between the exit status and the last of the output.
#[tokio::test]
async fn a_call_whose_exit_is_told_before_what_it_said_has_run_and_said_it() {
    let folder = tempfile::tempdir().unwrap();
    let terms = Terms {
        host: "this machine".into(),
        workspace: format!("{}/{{work}}", folder.path().display()),
        calls: 4,
        left: 4,
        output: 1 << 20,
        scratch: "/tmp",
        network: "none",
    };
    let lease = Lease {
        instance: InstanceId("here".into()),
        work: folder.path().join("work"),
        owner: Owner("us".into()),
    };
    let line = Arc::new(Here::default());
    let remote = Remote::start(line.clone(), &terms, &lease, &line.tasks).await.unwrap();
    for exit in [Exit::Last, Exit::First] {
        *line.exit.lock().unwrap() = exit;
        let arguments = json!({"command": "echo all; exit 3"});
        let call = Call { tool: "bash".into(), arguments: arguments.as_object().unwrap().clone() };
        let ended = remote.execute(&call, &CallContext::quiet(CancellationToken::new())).await.unwrap();
        let [Content::Text(text)] = &ended.content[..] else { panic!("{:?}", ended.content) };
        assert_eq!((ended.ending, text.as_str()), (Ending::Error, "all\n[exit code 3]"), "{exit:?}");
    }
    *line.exit.lock().unwrap() = Exit::Last;
    remote.end("the test is over").await.unwrap();
}
