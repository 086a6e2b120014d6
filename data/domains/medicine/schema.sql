-- A clinic. Money is whole dollars, time is days since it opened and minutes of a day, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table slots (minute integer primary key check (minute between 0 and 1439));
create table fields (field text primary key, floor integer not null check (floor between 1 and 9));
create table doctors (
    doctor text primary key,
    field text not null references fields (field),
    fee integer not null check (fee > 0),
    off integer not null check (off between 0 and 6),
    starts integer not null references slots (minute)
);
create table insurers (insurer text primary key, percent integer not null check (percent between 0 and 100));
create table patients (
    patient text primary key,
    age integer not null check (age between 0 and 120),
    insurer text not null references insurers (insurer),
    doctor text not null references doctors (doctor)
);
create table allergies (
    patient text not null references patients (patient),
    substance text not null,
    primary key (patient, substance)
);
create table drugs (
    drug integer primary key,
    form text not null,
    substance text not null,
    price integer not null check (price > 0),
    stock integer not null constraint stock_too_low check (stock >= 0)
);
create table visits (
    visit integer primary key,
    patient text not null references patients (patient),
    doctor text not null references doctors (doctor),
    day integer not null,
    minute integer not null references slots (minute),
    status text not null check (status in ('booked', 'done', 'missed', 'cancelled'))
);
create table prescriptions (
    prescription integer primary key,
    patient text not null references patients (patient),
    doctor text not null references doctors (doctor),
    drug integer not null references drugs (drug),
    packs integer not null check (packs > 0),
    day integer not null,
    status text not null check (status in ('open', 'filled', 'cancelled'))
);
create table bills (
    bill integer primary key,
    patient text not null references patients (patient),
    day integer not null,
    total integer not null check (total > 0),
    covered integer not null,
    status text not null check (status in ('open', 'paid')),
    check (covered between 0 and total)
);
create table charges (
    bill integer not null references bills (bill),
    number integer not null check (number > 0),
    item text not null check (item in ('visit', 'drugs', 'late')),
    amount integer not null check (amount > 0),
    primary key (bill, number)
);
create index visits_patient on visits (patient);
create index visits_doctor on visits (doctor, day);
create index prescriptions_patient on prescriptions (patient);
create index bills_patient on bills (patient);
