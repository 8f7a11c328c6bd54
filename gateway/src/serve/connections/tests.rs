//! Each bound with a short time of its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::{get, post};
use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use super::*;

/// Longer than anything here takes.
const HANGS: Duration = Duration::from_mins(1);
/// Shorter than a sweep: what may take only so long is closed by the next one.
const SHORT: Duration = Duration::from_millis(200);
/// Longer than a sweep and what it looks for.
const A_WHILE: Duration = Duration::from_secs(3);
const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn bounds() -> Bounds {
    Bounds { most: 100, head: HANGS, body: HANGS, idle: HANGS, write: HANGS }
}

/// Serves in the background, and says where.
async fn start(router: Router, bounds: Bounds) -> (std::net::SocketAddr, CancellationToken, TaskTracker) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(serve(listener, router, bounds, closing.clone()));
    tasks.close();
    (address, closing, tasks)
}

async fn send(address: std::net::SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// What comes until the connection is closed, by an end or a reset.
async fn rest(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let reading = async { while let Ok(1..) = stream.read_buf(&mut all).await {} };
    timeout(HANGS, reading).await.expect("it is not closed");
    String::from_utf8_lossy(&all).into_owned()
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn slow(ms: u64) -> Router {
    Router::new().route(
        "/",
        get(move || async move {
            sleep(Duration::from_millis(ms)).await;
            "done"
        }),
    )
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_a_time() {
    let (address, ..) = start(hello(), Bounds { idle: SHORT, ..bounds() }).await;
    let mut idle = send(address, GET).await;
    assert!(rest(&mut idle).await.ends_with("hello"));
    let (address, ..) = start(hello(), Bounds { head: SHORT, ..bounds() }).await;
    for begun in ["", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        let mut silent = send(address, begun).await;
        assert_eq!(rest(&mut silent).await, "", "{begun:?}");
    }
    // The headers of a further request have their time, too.
    let mut second = send(address, &format!("{GET}GET /")).await;
    assert!(timeout(HANGS, second.read_u8()).await.is_ok());
    second.write_all(b"second").await.unwrap();
    assert_eq!(
        rest(&mut second).await.matches("HTTP/1.1").count(),
        0,
        "one answer, whose first byte is read"
    );
}

#[tokio::test]
async fn a_request_that_is_being_answered_is_left_alone() {
    let all_short = Bounds { head: SHORT, body: SHORT, idle: SHORT, write: SHORT, ..bounds() };
    let (address, ..) = start(slow(3_000), all_short).await;
    let mut stream = send(address, GET).await;
    assert!(rest(&mut stream).await.ends_with("done"));
}

#[tokio::test]
async fn a_body_that_pauses_is_given_up_and_one_that_comes_slowly_is_read() {
    let router =
        Router::new().route("/", post(|body: bytes::Bytes| async move { format!("{} bytes", body.len()) }));
    let (address, ..) = start(router, Bounds { body: Duration::from_millis(1_500), ..bounds() }).await;
    let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\nconnection: close\r\n\r\n";
    let mut pauses = send(address, &format!("{head}1234")).await;
    let mut trickles = send(address, head).await;
    for _ in 0..8 {
        sleep(Duration::from_millis(500)).await;
        trickles.write_all(b"x").await.unwrap();
    }
    assert!(rest(&mut trickles).await.ends_with("8 bytes"));
    assert_eq!(rest(&mut pauses).await, "");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up_and_one_that_reads_slowly_is_not() {
    let given_up = CancellationToken::new();
    let guard = Arc::new(std::sync::Mutex::new(Some(given_up.clone().drop_guard())));
    let router = Router::new().route(
        "/",
        get(move || {
            // The first one who asks.
            let guard = guard.lock().unwrap().take();
            let chunks = futures_util::stream::repeat(bytes::Bytes::from(vec![b'x'; 64 << 10]));
            async move {
                let endless = chunks.map(move |chunk| {
                    let _held = &guard;
                    Ok::<_, Infallible>(chunk)
                });
                Body::from_stream(endless)
            }
        }),
    );
    let (address, ..) = start(router, Bounds { write: Duration::from_millis(1_500), ..bounds() }).await;
    let _never_reads = send(address, GET).await;
    timeout(HANGS, given_up.cancelled()).await.expect("its answer is still being written");
    let mut slow = send(address, GET).await;
    let mut piece = vec![0; 16 << 20];
    for _ in 0..8 {
        sleep(Duration::from_millis(500)).await;
        timeout(HANGS, slow.read(&mut piece)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn at_the_cap_the_longest_silent_makes_room_and_no_running_request_does() {
    let (address, ..) = start(slow(4_000), Bounds { most: 3, ..bounds() }).await;
    let mut running = send(address, GET).await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(send(address, "").await);
        sleep(Duration::from_millis(100)).await;
    }
    let mut more = send(address, GET).await;
    assert_eq!(rest(&mut silent[0]).await, "");
    assert!(timeout(SHORT, silent[1].read_u8()).await.is_err(), "the one that is silent for less long stays");
    let mut further = send(address, GET).await;
    assert_eq!(rest(&mut silent[1]).await, "");
    // All three are being answered now.
    assert_eq!(rest(&mut send(address, GET).await).await, "");
    for stream in [&mut running, &mut more, &mut further] {
        let mut answer = vec![0; 15];
        timeout(HANGS, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, b"HTTP/1.1 200 OK");
    }
    // Then they are idle, and make room.
    let mut last = send(address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(rest(&mut last).await.ends_with("done"));
}

/// A listener without descriptors, until there are some.
struct Starved(TcpListener, Arc<AtomicUsize>);

impl Listener for Starved {
    type Socket = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        if self.1.fetch_add(1, Ordering::Relaxed) < 10 {
            return Err(Errno::MFILE.into());
        }
        Listener::accept(&mut self.0).await
    }
}

#[tokio::test]
async fn accepts_that_fail_are_tried_again_without_haste() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(serve(Starved(listener, tries.clone()), hello(), bounds(), closing));
    sleep(Duration::from_millis(450)).await;
    let tried = tries.load(Ordering::Relaxed);
    assert!((1..=5).contains(&tried), "{tried} tries");
    let mut stream = send(address, GET).await;
    let mut answer = vec![0; 15];
    timeout(HANGS, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn closing_ends_the_silent_at_once_and_lets_answers_end() {
    let (address, closing, tasks) = start(slow(2_000), bounds()).await;
    let mut silent = send(address, "").await;
    let mut running = send(address, GET).await;
    sleep(SHORT).await;
    closing.cancel();
    let begun = Instant::now();
    assert_eq!(rest(&mut silent).await, "");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(rest(&mut running).await.ends_with("done"));
    timeout(A_WHILE, tasks.wait()).await.expect("everything has ended");
}

#[test]
fn what_happens_often_is_said_once() {
    let mut seldom = Seldom::default();
    assert_eq!((seldom.note(), seldom.note(), seldom.note()), (Some(1), None, None));
    seldom.said = Instant::now().checked_sub(SAID_EVERY);
    assert_eq!(seldom.note(), Some(3));
}
