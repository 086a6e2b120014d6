-- A retail bank. Money is whole dollars, time is days since the bank opened, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table plans (
    plan text primary key,
    fee integer not null check (fee >= 0),
    price integer not null check (price >= 0)
);
create table rates (kind text primary key, percent integer not null check (percent between 1 and 20));
create table branches (
    branch text primary key,
    manager text not null unique,
    cash integer not null check (cash > 0)
);
create table clients (
    client text primary key,
    branch text not null references branches (branch),
    plan text not null references plans (plan),
    score integer not null check (score between 300 and 850)
);
create table accounts (
    account integer primary key,
    client text not null references clients (client),
    kind text not null check (kind in ('current', 'savings')),
    balance integer not null constraint balance_too_low check (balance >= 0),
    status text not null check (status in ('open', 'frozen', 'closed')),
    unique (client, kind)
);
create table cards (
    card integer primary key,
    account integer not null references accounts (account),
    status text not null check (status in ('active', 'blocked')),
    most integer not null check (most > 0),
    expires integer not null
);
create table shops (shop text primary key, trade text not null);
create table payments (
    payment integer primary key,
    card integer not null references cards (card),
    shop text not null references shops (shop),
    amount integer not null check (amount > 0),
    day integer not null,
    status text not null check (status in ('paid', 'refunded'))
);
create table transfers (
    transfer integer primary key,
    source integer not null references accounts (account),
    target integer not null references accounts (account),
    amount integer not null check (amount > 0),
    fee integer not null check (fee >= 0),
    day integer not null,
    status text not null check (status in ('done', 'reversed')),
    check (source <> target)
);
create table loans (
    loan integer primary key,
    account integer not null references accounts (account),
    kind text not null references rates (kind),
    amount integer not null check (amount > 0),
    owed integer not null check (owed >= 0),
    day integer not null,
    status text not null check (status in ('running', 'repaid'))
);
create table instalments (
    loan integer not null references loans (loan),
    number integer not null check (number > 0),
    amount integer not null check (amount > 0),
    day integer not null,
    primary key (loan, number)
);
create index transfers_source on transfers (source);
create index payments_card on payments (card);
