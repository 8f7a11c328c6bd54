-- What seals cursors, task ids and request states.
create table sealing_key (
    name  text not null primary key,
    value text not null
);
