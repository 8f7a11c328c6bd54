//! A real PostgreSQL for tests: the server at `MANYHANDS_TEST_DATABASE_URL`, else one of our own that lives as
//! long as tests use it. A machine without either fails the test: nothing is skipped.
//!
//! The server refuses to run as root, so that root runs it as the user `postgres`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};

/// Names a server to use, as `postgres://user:password@host/database`; the user must be allowed to make databases.
pub const URL_VARIABLE: &str = "MANYHANDS_TEST_DATABASE_URL";
/// The superuser of our own server.
const USER: &str = "manyhands";
/// The socket in its directory.
const SOCKET: &str = ".s.PGSQL.5432";
/// How long our own server may take to start, on a machine that is busy with other tests.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// An empty database, gone with this value.
#[derive(Debug)]
pub struct TestDatabase {
    url: String,
    name: String,
    admin: String,
    _cluster: Option<Arc<Cluster>>,
}

impl TestDatabase {
    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        let drop_it = std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = connect(&admin).await?;
                let text = format!("drop database if exists \"{name}\" with (force)");
                sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut admin).await?;
                Ok(())
            })
        });
        if !matches!(drop_it.join(), Ok(Ok(()))) {
            eprintln!("the test database {} was not dropped", self.name);
        }
    }
}

/// Makes an empty database.
pub async fn database() -> Result<TestDatabase> {
    let name = format!("mh_{}", gateway::clock::id().simple());
    #[expect(clippy::disallowed_methods, reason = "tests are configured by the environment alone")]
    let given = std::env::var(URL_VARIABLE).ok();
    let (admin, url, cluster) = if let Some(admin) = given {
        let options: PgConnectOptions = admin.parse().context(URL_VARIABLE)?;
        let url = options.database(&name).to_url_lossy().to_string();
        (admin, url, None)
    } else {
        let cluster = tokio::task::spawn_blocking(Cluster::shared).await??;
        (cluster.url("postgres"), cluster.url(&name), Some(cluster))
    };
    let create = AssertSqlSafe(format!("create database \"{name}\""));
    sqlx::raw_sql(create).execute(&mut connect(&admin).await?).await?;
    Ok(TestDatabase { url, name, admin, _cluster: cluster })
}

/// Connects, and waits for a server that is still starting.
async fn connect(url: &str) -> Result<PgConnection> {
    let options: PgConnectOptions = url.parse()?;
    let started = tokio::time::Instant::now();
    loop {
        match options.connect().await {
            Ok(connection) => return Ok(connection),
            Err(error) if started.elapsed() > START_TIMEOUT => {
                return Err(error).context("the PostgreSQL for tests does not answer");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Our own server, reached by a socket in its directory. All test processes share it: nextest runs each test in its
/// own, and a start takes seconds.
///
/// Each of them holds a shared lock on `users`. A small shell that runs beside the server takes that lock for itself
/// once nobody has it, and then ends the server and removes its data; a killed test leaves nothing behind.
#[derive(Debug)]
struct Cluster {
    directory: PathBuf,
    _user: File,
}

static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

/// `$1` postgres, `$2` its directory, `$3` the file that its users lock.
const BESIDE: &str = r#"
"$1" -D "$2" -k "$2" -c listen_addresses= -c max_connections=300 -c shared_buffers=32MB -c autovacuum=off -c jit=off &
server=$!
exec 9<"$3"
while sleep 3; do
    if flock --exclusive --nonblock 9; then
        kill -QUIT $server
        wait $server
        rm -rf "$2"
        exit 0
    fi
done
"#;

impl Cluster {
    fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = shared.upgrade() {
            return Ok(cluster);
        }
        let cluster = Arc::new(Self::join()?);
        *shared = Arc::downgrade(&cluster);
        Ok(cluster)
    }

    /// Becomes a user of the running server, or of a new one.
    fn join() -> Result<Self> {
        let owner = Owner::find()?;
        let home = home(&owner)?;
        // Waits while the last server ends.
        let user = File::create(home.join("users"))?;
        user.lock_shared()?;
        let starting = File::create(home.join("starting"))?;
        starting.lock()?;
        let current = home.join("current");
        if let Ok(directory) = fs::read_to_string(&current).map(PathBuf::from)
            && UnixStream::connect(directory.join(SOCKET)).is_ok()
        {
            return Ok(Self { directory, _user: user });
        }
        let directory = start(&home, &owner)?;
        fs::write(&current, directory.as_os_str().as_bytes())?;
        Ok(Self { directory, _user: user })
    }

    fn url(&self, database: &str) -> String {
        let directory = self.directory.display().to_string().replace('/', "%2F");
        format!("postgres://{USER}@localhost/{database}?host={directory}")
    }
}

/// Starts a server, and waits until it listens.
fn start(home: &Path, owner: &Owner) -> Result<PathBuf> {
    let binaries = binaries()?;
    let template = template(home, &binaries, owner)?;
    // Nobody uses what a server that did not end well has left.
    for entry in fs::read_dir(home)?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"run-") {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
    let directory = home.join(format!("run-{}", gateway::clock::id().simple()));
    run(owner.command("cp").arg("-a").arg(&template).arg(&directory))?;
    let log = home.join("server.log");
    let left = owner
        .command("setsid")
        .args(["--fork", "sh", "-c", BESIDE, "beside"])
        .arg(binaries.join("postgres"))
        .arg(&directory)
        .arg(home.join("users"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?)
        .status()
        .context("PostgreSQL for tests did not start")?;
    ensure!(left.success(), "PostgreSQL for tests did not start: {left}");
    let started = Instant::now();
    while UnixStream::connect(directory.join(SOCKET)).is_err() {
        ensure!(
            started.elapsed() < START_TIMEOUT,
            "PostgreSQL for tests did not start: see {}",
            log.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(directory)
}

/// As whom the server runs.
struct Owner {
    uid: u32,
    gid: u32,
    switch: bool,
}

impl Owner {
    fn find() -> Result<Self> {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        if uid != 0 {
            return Ok(Self { uid, gid, switch: false });
        }
        let passwd = fs::read_to_string("/etc/passwd")?;
        let line = passwd.lines().find(|line| line.starts_with("postgres:"));
        let fields: Vec<&str> =
            line.context("there is no user postgres: install PostgreSQL")?.split(':').collect();
        let [_, _, uid, gid, ..] = fields[..] else { bail!("/etc/passwd is odd") };
        Ok(Self { uid: uid.parse()?, gid: gid.parse()?, switch: true })
    }

    /// A command that runs as the owner.
    fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new("setpriv");
        if self.switch {
            command
                .arg(format!("--reuid={}", self.uid))
                .arg(format!("--regid={}", self.gid))
                .arg("--clear-groups");
        }
        command.args(["--pdeathsig", "QUIT"]).arg("--").arg(program.into()).current_dir("/");
        command
    }
}

/// Where Debian and Ubuntu keep the server's programs: the newest version.
fn binaries() -> Result<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .context(
            "there is no PostgreSQL here: apt-get install postgresql, or set MANYHANDS_TEST_DATABASE_URL",
        )?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            Some((path.file_name()?.to_str()?.parse().ok()?, path.join("bin")))
        })
        .filter(|(_, binaries)| binaries.join("postgres").exists())
        .collect();
    versions.sort();
    let (_, newest) =
        versions.pop().context("PostgreSQL's server is not installed: apt-get install postgresql")?;
    Ok(newest)
}

/// A directory of the owner's, for the template and the running servers.
fn home(owner: &Owner) -> Result<PathBuf> {
    let home = std::env::temp_dir().join(format!("manyhands-postgres-{}", owner.uid));
    match fs::DirBuilder::new().mode(0o700).create(&home) {
        Ok(()) => chown(&home, Some(owner.uid), Some(owner.gid))?,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
    }
    ensure!(fs::metadata(&home)?.uid() == owner.uid, "{} belongs to somebody else", home.display());
    Ok(home)
}

/// A fresh cluster to copy, made once on this machine.
fn template(home: &Path, binaries: &Path, owner: &Owner) -> Result<PathBuf> {
    let version =
        binaries.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let template = home.join(format!("template-{version}"));
    if !template.exists() {
        let making = home.join("making");
        fs::remove_dir_all(&making).ok();
        run(owner
            .command(binaries.join("initdb"))
            .args([
                "--no-sync",
                "--no-locale",
                "--encoding=UTF8",
                "--auth=trust",
                "--wal-segsize=1",
                "-U",
                USER,
            ])
            .arg("-D")
            .arg(&making))?;
        fs::rename(&making, &template)?;
    }
    Ok(template)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
