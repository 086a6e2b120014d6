-- A school. Money is whole dollars, time is days since the school opened, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table grants (
    "grant" text primary key,
    percent integer not null check (percent between 0 and 50),
    minimum integer not null check (minimum between 0 and 100)
);
create table programmes (programme text primary key, fee integer not null check (fee > 0));
create table buildings (building text primary key, closes integer not null check (closes between 12 and 23));
create table rooms (
    room integer primary key,
    building text not null references buildings (building),
    seats integer not null check (seats > 0)
);
create table teachers (
    teacher text primary key,
    building text not null references buildings (building),
    hour integer not null check (hour between 8 and 18)
);
create table courses (
    course integer primary key,
    subject text not null,
    teacher text not null references teachers (teacher),
    room integer not null references rooms (room),
    weekday text not null check (weekday in ('monday', 'tuesday', 'wednesday', 'thursday', 'friday')),
    hour integer not null check (hour between 8 and 18),
    credits integer not null check (credits > 0),
    seats integer not null check (seats > 0),
    unique (room, weekday, hour),
    unique (teacher, weekday, hour)
);
create table students (
    student text primary key,
    programme text not null references programmes (programme),
    "grant" text not null references grants ("grant"),
    balance integer not null constraint balance_too_low check (balance >= 0),
    credits integer not null check (credits >= 0)
);
create table enrolments (
    student text not null references students (student),
    course integer not null references courses (course),
    day integer not null,
    status text not null check (status in ('running', 'passed', 'failed', 'dropped')),
    points integer check (points between 0 and 100),
    primary key (student, course),
    check ((status in ('passed', 'failed')) = (points is not null))
);
create table books (
    book integer primary key,
    subject text not null,
    shelf integer not null,
    copies integer not null check (copies >= 0),
    price integer not null check (price > 0)
);
create table loans (
    loan integer primary key,
    student text not null references students (student),
    book integer not null references books (book),
    due integer not null,
    status text not null check (status in ('out', 'returned', 'lost')),
    renewals integer not null check (renewals between 0 and 2)
);
create table invoices (
    invoice integer primary key,
    student text not null references students (student),
    kind text not null check (kind in ('course', 'library')),
    course integer references courses (course),
    loan integer unique references loans (loan),
    amount integer not null check (amount > 0),
    reduced integer not null check (reduced between 0 and amount),
    due integer not null,
    status text not null check (status in ('open', 'paid', 'cancelled')),
    unique (student, course),
    check ((kind = 'course') = (course is not null) and (kind = 'library') = (loan is not null))
);
create index enrolments_course on enrolments (course);
create index loans_student on loans (student);
create index loans_book on loans (book);
create index invoices_student on invoices (student);
