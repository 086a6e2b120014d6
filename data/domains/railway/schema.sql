-- A railway. Money is whole dollars, days are counted since it opened, times are minutes of a day; the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table stations (
    station text primary key,
    zone integer not null check (zone between 1 and 6),
    platforms integer not null check (platforms > 0)
);
create table classes (class text primary key, percent integer not null check (percent between 0 and 100));
create table refund_rules (days integer primary key, percent integer not null check (percent between 0 and 100));
create table pass_kinds (
    kind text primary key,
    percent integer not null check (percent between 1 and 50),
    price integer not null check (price > 0)
);
create table passengers (
    passenger text primary key,
    station text not null references stations (station),
    wallet integer not null constraint wallet_too_low check (wallet >= 0)
);
create table passes (
    pass integer primary key,
    passenger text not null references passengers (passenger),
    kind text not null references pass_kinds (kind),
    starts integer not null,
    expires integer not null,
    check (expires >= starts)
);
create table trains (
    train integer primary key,
    origin text not null references stations (station),
    destination text not null references stations (station),
    day integer not null,
    departs integer not null check (departs between 0 and 1439),
    arrives integer not null check (arrives <= 1439),
    fare integer not null check (fare > 0),
    delay integer not null check (delay >= 0),
    status text not null check (status in ('planned', 'arrived', 'cancelled')),
    check (origin <> destination and departs < arrives)
);
create table bookings (
    booking integer primary key,
    passenger text not null references passengers (passenger),
    train integer not null references trains (train),
    class text not null references classes (class),
    day integer not null,
    paid integer not null check (paid >= 0),
    status text not null check (status in ('booked', 'used', 'refunded'))
);
create table seats (
    train integer not null references trains (train),
    seat text not null,
    class text not null references classes (class),
    place text not null check (place in ('window', 'aisle')),
    booking integer unique references bookings (booking),
    primary key (train, seat)
);
create table refunds (
    booking integer primary key references bookings (booking),
    day integer not null,
    amount integer not null check (amount >= 0),
    reason text not null check (reason in ('returned', 'delayed', 'cancelled'))
);
create index bookings_passenger on bookings (passenger);
create index bookings_train on bookings (train);
create index trains_route on trains (origin, destination);
