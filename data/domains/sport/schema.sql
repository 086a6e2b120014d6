-- A football league. Money is whole dollars, time is days of the season, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table grounds (
    ground text primary key,
    city text not null,
    seats integer not null check (seats > 0)
);
create table clubs (
    club text primary key,
    ground text not null unique references grounds (ground),
    budget integer not null constraint budget_too_low check (budget >= 0),
    points integer not null check (points >= 0)
);
create table players (
    player text primary key,
    club text not null references clubs (club),
    role text not null check (role in ('keeper', 'back', 'middle', 'forward')),
    value integer not null check (value > 0),
    status text not null check (status in ('fit', 'injured', 'banned'))
);
create table matches (
    match integer primary key,
    home text not null references clubs (club),
    away text not null references clubs (club),
    day integer not null,
    price integer not null check (price > 0),
    status text not null check (status in ('planned', 'played')),
    home_goals integer,
    away_goals integer,
    check (home <> away),
    check ((status = 'played') = (home_goals is not null and away_goals is not null))
);
create table scorers (
    match integer not null references matches (match),
    player text not null references players (player),
    club text not null references clubs (club),
    goals integer not null check (goals > 0),
    primary key (match, player)
);
create table tiers (
    tier text primary key,
    percent integer not null check (percent between 1 and 50),
    price integer not null check (price > 0)
);
create table fans (
    fan text primary key,
    club text not null references clubs (club),
    credit integer not null constraint credit_too_low check (credit >= 0)
);
create table members (
    fan text primary key references fans (fan),
    tier text not null references tiers (tier),
    expires integer not null
);
create table tickets (
    ticket integer primary key,
    fan text not null references fans (fan),
    match integer not null references matches (match),
    price integer not null check (price > 0),
    status text not null check (status in ('valid', 'used', 'returned'))
);
create table offers (
    offer integer primary key,
    player text not null references players (player),
    buyer text not null references clubs (club),
    fee integer not null check (fee > 0),
    day integer not null,
    status text not null check (status in ('open', 'accepted', 'refused'))
);
create index players_club on players (club);
create index scorers_player on scorers (player);
create index tickets_fan on tickets (fan);
create index tickets_match on tickets (match);
create index offers_player on offers (player);
