-- A weather service. Money is whole dollars, time is days since it was founded, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table kinds (
    kind text primary key,
    lowest integer not null,
    highest integer not null,
    price integer not null check (price > 0),
    spares integer not null constraint spares_too_low check (spares >= 0),
    check (lowest < highest)
);
create table regions (
    region text primary key,
    part text not null check (part in ('north', 'south', 'east', 'west'))
);
create table stations (
    station text primary key,
    region text not null references regions (region),
    height integer not null check (height >= 0),
    status text not null check (status in ('running', 'paused'))
);
create table sensors (
    sensor integer primary key,
    station text not null references stations (station),
    kind text not null references kinds (kind),
    status text not null check (status in ('working', 'faulty')),
    checked integer not null,
    unique (station, kind)
);
create table readings (
    sensor integer not null references sensors (sensor),
    day integer not null,
    value integer not null,
    primary key (sensor, day)
);
create table forecasts (
    region text not null references regions (region),
    day integer not null,
    sky text not null check (sky in ('sun', 'clouds', 'fog', 'rain', 'storm')),
    high integer not null,
    low integer not null,
    rain integer not null check (rain between 0 and 100),
    primary key (region, day),
    check (low < high)
);
create table alerts (
    alert integer primary key,
    region text not null references regions (region),
    danger text not null check (danger in ('flood', 'fog', 'heat', 'hail', 'storm')),
    level integer not null check (level between 1 and 4),
    starts integer not null,
    ends integer not null,
    status text not null check (status in ('active', 'over', 'lifted')),
    check (starts <= ends)
);
create table plans (
    plan text primary key,
    price integer not null check (price >= 0),
    fee integer not null check (fee > 0),
    regions integer not null check (regions > 0)
);
create table subscribers (
    subscriber text primary key,
    plan text not null references plans (plan),
    level integer not null check (level between 1 and 4),
    balance integer not null constraint balance_too_low check (balance >= 0)
);
create table subscriptions (
    subscriber text not null references subscribers (subscriber),
    region text not null references regions (region),
    ends integer not null,
    primary key (subscriber, region)
);
create table notices (
    alert integer not null references alerts (alert),
    subscriber text not null references subscribers (subscriber),
    day integer not null,
    primary key (alert, subscriber)
);
create table technicians (
    technician text primary key,
    part text not null check (part in ('north', 'south', 'east', 'west'))
);
create table jobs (
    job integer primary key,
    sensor integer not null references sensors (sensor),
    technician text not null references technicians (technician),
    day integer not null,
    cost integer not null check (cost > 0),
    status text not null check (status in ('open', 'done'))
);
create index stations_region on stations (region);
create index alerts_region on alerts (region);
create index subscriptions_region on subscriptions (region);
create index jobs_technician on jobs (technician);
create index jobs_sensor on jobs (sensor);
