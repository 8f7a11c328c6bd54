//! Tasks of hands' servers (the extension `io.modelcontextprotocol/tasks`, SEP-2663).

use hands::mcp::Object;
use rmcp::ErrorData;

use super::super::Face;
use super::super::service::Asked;
use crate::registry::Registered;
use crate::session::SessionId;

impl Face {
    /// A call that became a task has an id of ours.
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "written next")]
    pub(in crate::mcp) fn own_task(
        &self,
        _result: &mut Object,
        _session: SessionId,
        _hand: &Registered,
        _asked: &Asked<'_>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}
