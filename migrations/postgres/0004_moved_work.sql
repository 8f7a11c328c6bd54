-- Whose work a folder of a data directory is, where that is not the session that it was made for: hands move, with their
-- work, and the folder stays where it is.
create table moved_work (
    session text not null,
    hand    text not null,
    home    text not null,
    folder  text not null,
    primary key (session, hand, home)
);
