-- A small library: enough of everything (a clock, references, a rule) to test the engine with.
create table clock (id integer primary key check (id = 1), day integer not null);
create table readers (reader text primary key, city text not null, fine integer not null check (fine >= 0));
create table books (
    book integer primary key,
    title text not null unique,
    reader text references readers (reader),
    due integer,
    copies integer not null default 1 check (copies between 0 and 9)
);
