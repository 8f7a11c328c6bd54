-- What a provider alone understands of an event: signatures of thoughts, encrypted reasoning. No face shows it.
alter table event add column private text;

-- What follows from a log, as of one of its events: a cache, never a source.
create table snapshot (
    session text    not null primary key,
    seq     integer not null,
    event   text    not null,
    format  integer not null,
    body    text    not null
) strict, without rowid;

-- Sessions in which the built-in loop has something to do: an index of the log, kept by its appends.
create table awake (
    session text    not null primary key,
    seq     integer not null
) strict, without rowid;
