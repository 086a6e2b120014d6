-- A travel agency. Money is whole dollars, time is day numbers and minutes of a day, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table cities (city text primary key, tax integer not null check (tax >= 0));
create table levels (
    level text primary key,
    grade integer not null unique,
    percent integer not null check (percent between 0 and 50),
    bag integer not null check (bag > 0),
    cost integer not null check (cost >= 0)
);
create table travellers (
    traveller text primary key,
    city text not null references cities (city),
    level text not null references levels (level),
    points integer not null constraint points_too_low check (points >= 0),
    wallet integer not null constraint wallet_too_low check (wallet >= 0)
);
create table flights (
    flight integer primary key,
    origin text not null references cities (city),
    destination text not null references cities (city),
    day integer not null,
    departs integer not null check (departs between 0 and 1439),
    minutes integer not null check (minutes > 0),
    price integer not null check (price > 0),
    seats integer not null check (seats > 0),
    check (origin <> destination)
);
create table tickets (
    ticket integer primary key,
    traveller text not null references travellers (traveller),
    flight integer not null references flights (flight),
    paid integer not null check (paid >= 0),
    bags integer not null check (bags between 0 and 2),
    status text not null check (status in ('booked', 'flown', 'cancelled'))
);
create table hotels (
    hotel text primary key,
    city text not null references cities (city),
    stars integer not null check (stars between 1 and 5),
    price integer not null check (price > 0),
    rooms integer not null check (rooms > 0)
);
create table stays (
    stay integer primary key,
    traveller text not null references travellers (traveller),
    hotel text not null references hotels (hotel),
    arrival integer not null,
    nights integer not null check (nights between 1 and 14),
    paid integer not null check (paid >= 0),
    status text not null check (status in ('booked', 'stayed', 'cancelled'))
);
create index tickets_traveller on tickets (traveller);
create index tickets_flight on tickets (flight);
create index stays_traveller on stays (traveller);
create index stays_hotel on stays (hotel);
