-- Work of sessions' hands that lies elsewhere than in a data directory: on a host, a device, a daemon. The folder is the one of
-- the data directory by which the hand names it. A row goes when the work has been removed.
create table far_work (
    home    text not null,
    folder  text not null,
    session text not null,
    hand    text not null,
    primary key (home, folder)
) strict, without rowid;
