//! What hands keep on this machine between instances: `{work}/{session}/{hand}`, and for how long.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sqlx::Row as _;

use super::Leases;
use crate::database::DatabaseError;
use crate::session::SessionId;

impl Leases {
    /// Removes what the hands of a deleted session kept on this machine.
    pub async fn remove_work(&self, session: SessionId) {
        remove(self.work.join(session.to_string())).await;
    }

    /// Removes the work of sessions that were archived before `older_than`, and of those that are deleted.
    ///
    /// A session that the database does not know may be one of another database that this directory was used
    /// with: its work goes only when nobody has touched its folders since `older_than` either.
    pub async fn sweep_work(&self, older_than: Timestamp) -> Result<(), DatabaseError> {
        let root = self.work.clone();
        let kept = tokio::task::spawn_blocking(move || folders(&root)).await.unwrap_or_default();
        for (session, folder, touched) in kept {
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
                remove(folder).await;
            }
        }
        Ok(())
    }
}

/// The folders of sessions, with the time of the last change to them or to what lies in them.
fn folders(root: &Path) -> Vec<(SessionId, PathBuf, Timestamp)> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let of_session = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let session = entry.file_name().to_str()?.parse().ok()?;
        let hands = std::fs::read_dir(entry.path()).ok()?.filter_map(|hand| Some(hand.ok()?.path()));
        let touched = hands
            .chain([entry.path()])
            .filter_map(|path| Timestamp::try_from(path.symlink_metadata().ok()?.modified().ok()?).ok())
            .max()?;
        Some((session, entry.path(), touched))
    };
    entries.filter_map(of_session).collect()
}

async fn remove(folder: PathBuf) {
    let shown = folder.display().to_string();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
    match removed.unwrap_or_else(|error| Err(error.into())) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(folder = shown, error = %error, "a session's work could not be removed");
        }
    }
}
