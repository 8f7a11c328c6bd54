//! The database's door: group commit, what it refuses to open, and what it says.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use gateway::database::{
    Database, DatabaseConfig, DatabaseError, Failure, SQLITE_FILE, Script, Statement, Stopped,
};
use gateway::session::{At, EventLog, LogError};
use tests::postgres;
use tokio::task::JoinSet;

use crate::log::{Store, ensure_holds, on_both, said};

on_both!(
    a_failed_write_leaves_the_others,
    a_stopped_script_leaves_the_others,
    a_panic_is_the_callers_alone,
    a_newer_schema_is_refused,
    a_changed_migration_is_refused,
    opening_at_once_works,
    a_closed_database_says_so,
    what_was_waiting_is_written_before_it_closes,
);

#[derive(Debug, thiserror::Error)]
enum TestError {
    #[error("as planned")]
    Planned,
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

async fn write(database: Database, subject: String, fail: Option<TestError>) -> Result<(), TestError> {
    let fail = fail.map(Arc::new);
    let work = database.write(move |connection| {
        Box::pin(async move {
            sqlx::query("insert into lease (subject, node, epoch) values ($1, 'n', 1)")
                .bind(subject)
                .execute(connection)
                .await
                .map_err(DatabaseError::from)?;
            fail.map_or(Ok(()), |_| Err(TestError::Planned))
        })
    });
    work.await
}

async fn subjects(database: &Database) -> Result<Vec<String>> {
    let subjects = sqlx::query_scalar("select subject from lease order by subject");
    Ok(subjects.fetch_all(database.reader()).await?)
}

async fn a_failed_write_leaves_the_others(store: &Store) -> Result<()> {
    let mut writers = JoinSet::new();
    for n in 0..100 {
        let fail = (n % 3 == 0).then_some(TestError::Planned);
        writers.spawn(write(store.database.clone(), format!("{n:03}"), fail));
    }
    let failed = writers.join_all().await.iter().filter(|written| written.is_err()).count();
    ensure!(failed == 34, "{failed}");
    let expected: Vec<String> = (0..100).filter(|n| n % 3 != 0).map(|n| format!("{n:03}")).collect();
    ensure!(subjects(&store.database).await? == expected);
    let twice = write(store.database.clone(), "001".into(), None).await;
    ensure!(matches!(twice, Err(TestError::Database(DatabaseError::Failed(_)))), "{twice:?}");
    Ok(())
}

/// Scripts that go through, that are refused, and that fail, among other work, each with the number of its lease.
async fn a_stopped_script_leaves_the_others(store: &Store) -> Result<()> {
    let lease = |subject: String| {
        Statement::new("insert into lease (subject, node, epoch) values ($1, 'n', $2)").bind(subject).bind(1)
    };
    let absent = || Statement::new("select epoch from lease where subject = $1").bind("nobody's").needs_row();
    let mut writers = JoinSet::new();
    for n in 0..120 {
        let (database, subject) = (store.database.clone(), format!("{n:03}"));
        let script = match n % 4 {
            0 => Script::new(vec![lease(subject.clone())]),
            1 => Script::new(vec![lease(subject.clone()), absent()]),
            2 => Script::new(vec![lease(subject.clone()), lease(subject.clone())]),
            _ => {
                writers.spawn(async move { write(database, subject, None).await.is_ok() });
                continue;
            }
        };
        writers.spawn(async move {
            let ran = database.run(script).await;
            match n % 4 {
                0 => ran.is_ok(),
                1 => matches!(ran, Err(Stopped::Refused(1))),
                _ => matches!(ran, Err(Stopped::Failed(1, Failure::Taken { .. }))),
            }
        });
    }
    ensure!(writers.join_all().await.into_iter().all(|as_planned| as_planned));
    let expected: Vec<String> =
        (0..120).filter(|n| matches!(n % 4, 0 | 3)).map(|n| format!("{n:03}")).collect();
    ensure!(subjects(&store.database).await? == expected);
    // The values of a statement count by their numbers, in whatever order it uses them.
    let text = "update lease set epoch = $2 where subject = $1 returning epoch";
    let gave = store.database.run(Script::new(vec![Statement::new(text).bind("000").bind(7)])).await?;
    ensure!(gave[0].number == Some(7), "{gave:?}");
    Ok(())
}

async fn a_panic_is_the_callers_alone(store: &Store) -> Result<()> {
    let mut writers = JoinSet::new();
    for n in 0..20 {
        let database = store.database.clone();
        writers.spawn(async move {
            if n % 4 != 0 {
                return write(database, format!("{n:03}"), None).await.is_ok();
            }
            let work = database.write(|_| Box::pin(async { panic_on_purpose() }));
            let panicked: Result<Result<(), DatabaseError>, _> =
                futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(work)).await;
            !matches!(panicked, Ok(Ok(())))
        });
    }
    ensure!(writers.join_all().await.into_iter().all(|fine| fine));
    ensure!(subjects(&store.database).await?.len() == 15);
    Ok(())
}

fn panic_on_purpose() -> Result<(), DatabaseError> {
    panic!("on purpose")
}

/// Runs one statement on the bookkeeping of migrations, closes, and opens again.
async fn reopen_after(store: &Store, text: &'static str) -> Result<DatabaseError> {
    let change = store.database.write(move |connection| {
        Box::pin(async move {
            sqlx::raw_sql(text).execute(connection).await?;
            Ok::<_, DatabaseError>(())
        })
    });
    change.await?;
    store.database.close().await;
    Database::open(store.config.clone()).await.err().context("it was opened")
}

async fn a_newer_schema_is_refused(store: &Store) -> Result<()> {
    let refused = reopen_after(
        store,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         select 9000, 'from the future', success, checksum, 1 from _sqlx_migrations where version = 1",
    )
    .await?;
    ensure!(matches!(refused, DatabaseError::Newer(9_000)), "{refused:?}");
    let text = "this database was made by a newer manyhands (migration 9000 is unknown here): upgrade this program \
                or use another database";
    ensure!(refused.to_string() == text, "{refused}");
    Ok(())
}

async fn a_changed_migration_is_refused(store: &Store) -> Result<()> {
    let refused = reopen_after(
        store,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         select 0, description, success, checksum, 1 from _sqlx_migrations where version = 1;
         delete from _sqlx_migrations where version = 1;
         update _sqlx_migrations set version = 1, checksum = substr(checksum, 1, 8) where version = 0;",
    )
    .await?;
    ensure!(matches!(refused, DatabaseError::Changed(1)), "{refused:?}");
    Ok(())
}

/// On an empty database, so that each finds the schema missing.
async fn opening_at_once_works(store: &Store) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (config, _keep) = match &store.config {
        DatabaseConfig::Directory(_) => (DatabaseConfig::Directory(directory.path().join("new/deep")), None),
        DatabaseConfig::Url(_) => {
            let database = postgres::database().await?;
            (DatabaseConfig::Url(database.url().into()), Some(database))
        }
    };
    let mut openers = JoinSet::new();
    for _ in 0..6 {
        openers.spawn(Database::open(config.clone()));
    }
    let opened = openers.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (n, database) in opened.iter().enumerate() {
        write(database.clone(), format!("{n}"), None).await?;
    }
    ensure!(subjects(&opened[0]).await?.len() == 6);
    for database in opened {
        database.close().await;
    }
    Ok(())
}

async fn a_closed_database_says_so(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    store.database.close().await;
    let late = store.log.append(id, At::End, &[said("late")]).await;
    ensure!(matches!(late, Err(LogError::Database(DatabaseError::Closed))), "{late:?}");
    let late = store.log.read(id, gateway::session::Slice::default()).await;
    ensure!(matches!(late, Err(LogError::Database(DatabaseError::Closed))), "{late:?}");
    Ok(())
}

async fn what_was_waiting_is_written_before_it_closes(store: &Store) -> Result<()> {
    let mut writers = JoinSet::new();
    for n in 0..200 {
        writers.spawn(write(store.database.clone(), format!("{n:03}"), None));
    }
    tokio::task::yield_now().await;
    store.database.close().await;
    let written = writers.join_all().await.iter().filter(|written| written.is_ok()).count();
    let again = Database::open(store.config.clone()).await?;
    ensure!(subjects(&again).await?.len() == written, "an answer and the database differ");
    Ok(())
}

/// A setting of both connections that write to SQLite: that of scripts and that of other work.
async fn set(store: &Store, text: &'static str) -> Result<()> {
    store.database.run(Script::new(vec![Statement::new(text)])).await?;
    let set = store.database.write(move |connection| {
        Box::pin(async move {
            sqlx::raw_sql(text).execute(connection).await?;
            Ok::<_, DatabaseError>(())
        })
    });
    Ok(set.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_says_so_and_goes_on_later() -> Result<()> {
    let store = Store::sqlite().await?;
    let id = store.session().await?.id;
    set(&store, "pragma max_page_count = 60").await?;
    let mut ids = Vec::new();
    let mut full = None;
    for _ in 0..60 {
        let event = said(&"x".repeat(20_000));
        match store.log.append(id, At::End, std::slice::from_ref(&event)).await {
            Ok(_) => ids.push(event.id),
            Err(error) => {
                full = Some(error);
                break;
            }
        }
    }
    let full = full.context("60 pages hold more than a megabyte")?;
    ensure!(matches!(&full, LogError::Database(error) if error.is_full()), "{full:?}");
    ensure!(full.to_string().contains("free some space"), "{full}");
    // In a group, a small event fits where a large one does not.
    let mut writers = JoinSet::new();
    for n in 0..8 {
        let (log, event) = (store.log.clone(), said(&"x".repeat(if n % 2 == 0 { 20_000 } else { 1 })));
        writers.spawn(async move { (log.append(id, At::End, std::slice::from_ref(&event)).await, event.id) });
    }
    let mut written: Vec<_> =
        writers.join_all().await.into_iter().filter_map(|(seq, id)| Some((seq.ok()?, id))).collect();
    set(&store, "pragma max_page_count = 1000000").await?;
    let event = said("room again");
    written.push((store.log.append(id, At::End, std::slice::from_ref(&event)).await?, event.id));
    written.sort_unstable();
    ids.extend(written.iter().map(|(_, id)| *id));
    ensure_holds(&store, id, &ids).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_says_so() -> Result<()> {
    for (store, text) in [
        (Store::sqlite().await?, "pragma query_only = on"),
        (Store::postgres().await?, "set transaction read only"),
    ] {
        let id = store.session().await?.id;
        let (log, error) = match &store.config {
            // It stays so for the connections that write.
            DatabaseConfig::Directory(_) => {
                set(&store, text).await?;
                (&store.log, store.log.append(id, At::End, &[said("x")]).await.map(|_| ()))
            }
            DatabaseConfig::Url(_) => {
                let write = store.database.write(move |connection| {
                    Box::pin(async move {
                        sqlx::raw_sql(text).execute(&mut *connection).await.map_err(DatabaseError::from)?;
                        let update = sqlx::query("update session set bytes = 0").execute(connection).await;
                        Ok::<_, LogError>(update.map(|_| ()).map_err(DatabaseError::from)?)
                    })
                });
                (&store.log, write.await)
            }
        };
        ensure!(matches!(error, Err(LogError::Database(DatabaseError::ReadOnly))), "{error:?}");
        ensure!(log.read(id, gateway::session::Slice::default()).await?.len() == 1, "it can still be read");
    }
    Ok(())
}

#[tokio::test]
async fn another_kind_of_file_is_no_database() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join(SQLITE_FILE);
    std::fs::write(&file, "a letter to a friend, long enough to be none of SQLite's. ".repeat(100))?;
    let refused =
        Database::open(DatabaseConfig::Directory(directory.path().into())).await.err().context("opened")?;
    ensure!(matches!(&refused, DatabaseError::NotADatabase(path) if *path == file), "{refused:?}");
    std::fs::remove_file(&file)?;
    std::fs::create_dir(&file)?;
    let refused =
        Database::open(DatabaseConfig::Directory(directory.path().into())).await.err().context("opened")?;
    ensure!(matches!(refused, DatabaseError::CannotOpen { .. }), "{refused:?}");
    let refused =
        Database::open(DatabaseConfig::Directory("/proc/nowhere".into())).await.err().context("opened")?;
    ensure!(matches!(refused, DatabaseError::Directory { .. }), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_path_of_odd_characters_is_one() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let odd = directory.path().join("a b?c=d&e#f%20g/ü");
    let database = Database::open(DatabaseConfig::Directory(odd.clone())).await?;
    ensure!(odd.join(SQLITE_FILE).exists());
    database.close().await;
    Ok(())
}

#[tokio::test]
async fn weak_durability_is_refused() -> Result<()> {
    let database = postgres::database().await?;
    let config = DatabaseConfig::Url(database.url().into());
    let open = Database::open(config.clone()).await?;
    let name = database.name().to_owned();
    let weaken = format!("alter database \"{name}\" set synchronous_commit = off");
    sqlx::raw_sql(sqlx::AssertSqlSafe(weaken)).execute(open.reader()).await?;
    open.close().await;
    let refused = Database::open(config).await.err().context("opened")?;
    ensure!(matches!(refused, DatabaseError::Weak { setting: "synchronous_commit", .. }), "{refused:?}");
    ensure!(refused.to_string().contains("set it to on"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn an_error_never_shows_the_password() -> Result<()> {
    let real = postgres::database().await?;
    let nowhere = real.url().replace(real.name(), "nowhere");
    let with_password = nowhere.replace("@localhost", ":hunter2@localhost");
    for (url, expected) in [
        ("postgres://me:hunter2@127.0.0.1:1/db", "127.0.0.1:1 does not answer"),
        (with_password.as_str(), "refuses (database \"nowhere\" does not exist)"),
        ("postgres://me:hunter2@host:port/db", "not understood"),
        ("mysql://me:hunter2@host/db", "not understood"),
        ("postgres:/me:hunter2@host", "not understood"),
        ("hunter2", "not understood"),
    ] {
        let config = DatabaseConfig::Url(url.into());
        ensure!(!format!("{config:?}").contains("hunter2"));
        let refused = Database::open(config).await.err().context("opened")?;
        let mut told = format!("{refused:?} {refused}");
        let mut source = std::error::Error::source(&refused);
        while let Some(error) = source {
            write!(told, " {error:?} {error}")?;
            source = error.source();
        }
        ensure!(told.contains(expected), "{told}");
        ensure!(!told.contains("hunter2"), "{told}");
    }
    Ok(())
}
