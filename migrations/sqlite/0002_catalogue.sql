-- What the servers of MCP hands offered when they were last looked at, and how that changed. Each is thrown away when the
-- hand is set up otherwise.
create table catalogue (
    hand          text not null primary key,
    config_digest text not null,
    body          text not null,
    updated_at    text not null
) strict, without rowid;
