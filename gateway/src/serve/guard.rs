//! What decides over the gateway, and so must lie where no hand can write.

use crate::config::{Config, Question};
use crate::database::{Database, DatabaseError};
use crate::hand::{Guard, Guarded, HandName};
use crate::registry;

/// The configuration in use and the data directory.
pub(super) fn places(config: &Config) -> Guarded {
    let file = config.file.in_use().map(|path| (Guard::Configuration, path.to_owned()));
    Guarded::new(file.into_iter().chain([(Guard::Data, config.data.clone())]))
}

/// A configuration that nobody chose and that lies where a hand of the database may write: the hand's agent may have
/// written it.
pub(super) async fn written_by_an_agent(
    config: &Config,
    database: &Database,
) -> Result<Option<(Question, HandName)>, DatabaseError> {
    let (Some(path), Some(question)) = (config.file.in_use(), config.file.unasked_whole()) else {
        return Ok(None);
    };
    let place = Guarded::new([(Guard::Configuration, path.to_owned())]);
    let hands = registry::added(database).await?;
    let writes = hands.into_iter().find(|(_, hand)| place.check(hand).is_err());
    Ok(writes.map(|(name, _)| (question.clone(), name)))
}
