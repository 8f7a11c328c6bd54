-- Sessions and who owns them.
create table session (
    id         text    not null primary key,
    principal  text    not null,
    name       text,
    status     text    not null check (status in ('active', 'archived', 'deleting')),
    created_at text    not null,
    updated_at text    not null,
    last_seq   integer not null default 0,
    bytes      integer not null default 0,
    unique (principal, name)
) strict, without rowid;

-- The log itself.
create table event (
    session     text    not null,
    seq         integer not null check (seq > 0),
    id          text    not null,
    at          text    not null,
    type        text    not null,
    tool_use_id text,
    call_key    text,
    resend_key  text,
    output_id   text,
    size        integer not null,
    by          text    not null,
    body        text    not null,
    primary key (session, seq)
) strict, without rowid;

create index event_type on event (session, type, seq);
-- A call starts once and has one outcome, whoever appends it.
create unique index event_started on event (session, tool_use_id) where type = 'hand.call_started';
create unique index event_result on event (session, tool_use_id) where type = 'agent.tool_result';
create unique index event_call_key on event (session, call_key) where call_key is not null;
create index event_resend_key on event (session, resend_key) where resend_key is not null;
-- An output is swept unless an event names it.
create index event_output on event (session, output_id) where output_id is not null;

create trigger event_is_final before update on event
begin select raise(abort, 'an event never changes'); end;
create trigger event_stays before delete on event
when not exists (select 1 from session where id = old.session and status = 'deleting')
begin select raise(abort, 'an event stays as long as its session'); end;
create trigger event_starts_first before insert on event
when new.type = 'hand.call_started' and exists (select 1 from event
    where session = new.session and tool_use_id = new.tool_use_id and type = 'agent.tool_result')
begin select raise(abort, 'a call with an outcome never starts'); end;

-- Outputs too large for the log, written before the event that names them.
create table output (
    session    text    not null,
    id         text    not null,
    n          integer not null,
    created_at text    not null,
    chunk      blob    not null,
    primary key (session, id, n)
) strict, without rowid;

-- Processes that share this database. `beat` grows while one lives.
create table node (
    id         text    not null primary key,
    home       text    not null,
    host       text    not null,
    started_at text    not null,
    beat       integer not null default 0,
    status     text    not null check (status in ('alive', 'stopped', 'dead'))
) strict, without rowid;

-- Who may act on what. A take-over raises the epoch.
create table lease (
    subject text    not null primary key,
    node    text    not null,
    epoch   integer not null
) strict, without rowid;

-- Calls that were asked for and have no outcome: an index of the log, kept by its appends.
create table open_call (
    session     text    not null,
    tool_use_id text    not null,
    node        text    not null,
    started     integer not null,
    primary key (session, tool_use_id)
) strict, without rowid;

-- Instances of hands that may be alive somewhere.
create table instance (
    id         text not null primary key,
    session    text not null,
    hand       text not null,
    kind       text not null,
    node       text not null,
    lost       integer not null default 0,
    created_at text not null
) strict, without rowid;

-- Hands added at run time.
create table hand (
    name       text not null primary key,
    config     text not null,
    created_at text not null
) strict, without rowid;

-- Bearer tokens, as SHA-256.
create table token (
    digest     text not null primary key,
    name       text not null,
    principal  text not null,
    created_at text not null,
    expires_at text,
    revoked_at text
) strict, without rowid;
