//! What hands keep on this machine between instances: `{work}/{session}/{hand}`, and for how long.
//!
//! A hand that moved took its work along: the folder stays where it was made, and the table `moved_work` says whose it is
//! now. The session that it was made for has a new one meanwhile, `{work}/{session}/{hand}.2`, and has its own again when
//! nobody else has it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sqlx::Row as _;

use super::Leases;
use crate::clock;
use crate::database::DatabaseError;
use crate::hand::HandName;
use crate::session::SessionId;

/// Where work is put before it is removed, below the folder of all work. What could not be removed is there still, and each
/// sweep tries it again.
const REMOVED: &str = "removed";

impl Leases {
    /// The folder of a session's hand, below the folder of all work.
    pub(super) async fn folder(&self, session: SessionId, hand: &HandName) -> Result<String, DatabaseError> {
        let given: Option<String> = sqlx::query_scalar(
            "select folder from moved_work where session = $1 and hand = $2 and home = $3",
        )
        .bind(session.to_string())
        .bind(hand.to_string())
        .bind(self.nodes.home().to_owned())
        .fetch_optional(self.database.reader())
        .await?;
        if let Some(given) = given {
            return Ok(given);
        }
        let lent = self.lent(session).await?;
        let own = format!("{session}/{hand}");
        let further = (2_u64..).map(|n| format!("{own}.{n}"));
        let free = std::iter::once(own.clone()).chain(further).find(|folder| !lent.contains(folder));
        Ok(free.unwrap_or(own))
    }

    /// Where the session has work of the hand now, if it has.
    pub(super) async fn kept_aside(
        &self,
        session: SessionId,
        hand: &HandName,
    ) -> Result<Option<PathBuf>, DatabaseError> {
        let folder = self.work.join(self.folder(session, hand).await?);
        Ok(folder.exists().then_some(folder))
    }

    /// Folders of this session that others have now.
    async fn lent(&self, session: SessionId) -> Result<BTreeSet<String>, DatabaseError> {
        let lent: Vec<String> = sqlx::query_scalar(
            "select w.folder from moved_work w join session s on s.id = w.session
             where w.home = $1 and w.session <> $2 and w.folder like $2 || '/%'",
        )
        .bind(self.nodes.home().to_owned())
        .bind(session.to_string())
        .fetch_all(self.database.reader())
        .await?;
        Ok(lent.into_iter().collect())
    }

    /// Removes what the hands of a deleted session kept, on this machine and elsewhere. What it lent to others stays.
    pub async fn remove_work(&self, session: SessionId) {
        // Here first: elsewhere it may take long, and what is there is known by rows of its own.
        for removed in [self.clear_work(session).await, self.remove_far_work(session).await] {
            if let Err(error) = removed {
                tracing::warn!(session.id = %session, error = %error, "a session's work could not be removed");
            }
        }
    }

    async fn clear_work(&self, session: SessionId) -> Result<(), DatabaseError> {
        let (lent, home) = (self.lent(session).await?, self.nodes.home().to_owned());
        let given: Vec<String> =
            sqlx::query_scalar("select folder from moved_work where session = $1 and home = $2")
                .bind(session.to_string())
                .bind(home.clone())
                .fetch_all(self.database.reader())
                .await?;
        for folder in given {
            self.remove(self.work.join(folder)).await;
        }
        let own = self.work.join(session.to_string());
        if lent.is_empty() {
            self.remove(own).await;
        } else {
            for entry in std::fs::read_dir(&own).into_iter().flatten().flatten() {
                let folder = format!("{session}/{}", entry.file_name().to_string_lossy());
                if !lent.contains(&folder) {
                    self.remove(entry.path()).await;
                }
            }
        }
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("delete from moved_work where session = $1 and home = $2")
                        .bind(session.to_string())
                        .bind(home)
                        .execute(connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await
    }

    /// Removes a folder with all that agents made in it.
    async fn remove(&self, folder: PathBuf) {
        let aside = self.work.join(REMOVED).join(clock::id().to_string());
        let _alone = self.removing.lock().await;
        removed(move || {
            // Gone from its place at once. One that can't be moved may be removed where it is.
            if std::fs::symlink_metadata(&folder).is_err() {
                return (Ok(()), folder);
            }
            let moved = std::fs::create_dir_all(aside.parent().unwrap_or(&aside))
                .and_then(|()| std::fs::rename(&folder, &aside));
            let what = if moved.is_ok() { aside } else { folder };
            (hands::folder::remove(&what), what)
        })
        .await;
    }

    /// Tries again to remove what could not be removed before.
    async fn remove_rest(&self) {
        let _alone = self.removing.lock().await;
        for entry in std::fs::read_dir(self.work.join(REMOVED)).into_iter().flatten().flatten() {
            removed(move || (hands::folder::remove(&entry.path()), entry.path())).await;
        }
    }

    /// Removes the work of sessions that were archived before `older_than`, and of those that are deleted.
    ///
    /// A session that the database does not know may be one of another database that this directory was used
    /// with: its work goes only when nobody has touched its folders since `older_than` either.
    pub async fn sweep_work(&self, older_than: Timestamp) -> Result<(), DatabaseError> {
        self.remove_rest().await;
        let root = self.work.clone();
        let kept = tokio::task::spawn_blocking(move || folders(&root)).await.unwrap_or_default();
        for (session, touched) in kept {
            let row = sqlx::query("select status, updated_at from session where id = $1")
                .bind(session.to_string())
                .fetch_optional(self.database.reader())
                .await?;
            let goes = match row {
                None => touched < older_than,
                Some(row) => match row.try_get::<String, _>("status")?.as_str() {
                    "deleting" => true,
                    // Nothing can change it later than its archiving.
                    "archived" => row
                        .try_get::<String, _>("updated_at")?
                        .parse()
                        .is_ok_and(|archived: Timestamp| archived < older_than),
                    _ => false,
                },
            };
            if goes {
                tracing::info!(session.id = %session, "the kept work of a session is removed");
                self.clear_work(session).await?;
            }
        }
        Ok(())
    }
}

/// The folders of sessions, with the time of the last change to them or to what lies in them.
fn folders(root: &Path) -> Vec<(SessionId, Timestamp)> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let of_session = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let session = entry.file_name().to_str()?.parse().ok()?;
        let hands = std::fs::read_dir(entry.path()).ok()?.filter_map(|hand| Some(hand.ok()?.path()));
        let touched = hands
            .chain([entry.path()])
            .filter_map(|path| Timestamp::try_from(path.symlink_metadata().ok()?.modified().ok()?).ok())
            .max()?;
        Some((session, touched))
    };
    entries.filter_map(of_session).collect()
}

/// Removes something where blocking is allowed, and says what can't be.
async fn removed(remove: impl FnOnce() -> (std::io::Result<()>, PathBuf) + Send + 'static) {
    match tokio::task::spawn_blocking(remove).await {
        Ok((Ok(()), _)) => {}
        Ok((Err(error), folder)) => tracing::warn!(
            folder = %folder.display(), error = %error,
            "the work of a session could not be removed, and is tried again later"
        ),
        Err(error) => tracing::warn!(error = %error, "the work of a session could not be removed"),
    }
}
