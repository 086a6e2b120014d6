-- A cinema that also streams. Money is whole dollars, days are counted since it opened, times are minutes of a day,
-- and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table plans (
    plan text primary key,
    fee integer not null check (fee > 0),
    percent integer not null check (percent between 0 and 50),
    streams integer not null check (streams > 0)
);
create table studios (studio text primary key, city text not null);
create table films (
    film integer primary key,
    genre text not null,
    minutes integer not null check (minutes between 60 and 180),
    age integer not null check (age in (0, 6, 12, 16, 18)),
    studio text not null references studios (studio),
    online integer not null check (online in (0, 1))
);
create table halls (
    hall text primary key,
    floor integer not null,
    seats integer not null check (seats > 0)
);
create table viewers (
    viewer text primary key,
    age integer not null check (age between 6 and 99),
    balance integer not null constraint balance_too_low check (balance >= 0),
    plan text not null references plans (plan),
    until integer not null
);
create table shows (
    show integer primary key,
    film integer not null references films (film),
    hall text not null references halls (hall),
    day integer not null,
    starts integer not null check (starts between 0 and 1439),
    price integer not null check (price > 0),
    free integer not null constraint sold_out check (free >= 0),
    status text not null check (status in ('planned', 'played', 'cancelled'))
);
create table tickets (
    ticket integer primary key,
    viewer text not null references viewers (viewer),
    show integer not null references shows (show),
    day integer not null,
    quantity integer not null check (quantity between 1 and 6),
    paid integer not null check (paid >= 0),
    refund integer not null default 0 check (refund between 0 and paid),
    status text not null check (status in ('valid', 'used', 'refunded'))
);
create table streams (
    viewer text not null references viewers (viewer),
    film integer not null references films (film),
    day integer not null,
    primary key (viewer, film, day)
);
create table ratings (
    viewer text not null references viewers (viewer),
    film integer not null references films (film),
    stars integer not null check (stars between 1 and 5),
    primary key (viewer, film)
);
create table gifts (
    gift integer primary key,
    value integer not null check (value > 0),
    expires integer not null,
    viewer text references viewers (viewer)
);
create index shows_film on shows (film);
create index tickets_show on tickets (show);
create index tickets_viewer on tickets (viewer);
