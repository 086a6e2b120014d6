-- A restaurant with one sitting an evening. Money is whole dollars, time is days since it opened; the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table areas (area text primary key, cover integer not null check (cover >= 0));
create table dining_tables (
    table_id integer primary key,
    area text not null references areas (area),
    seats integer not null check (seats between 2 and 10)
);
create table waiters (
    waiter text primary key,
    area text not null references areas (area),
    tips integer not null check (tips >= 0)
);
create table guests (
    guest text primary key,
    avoids text check (avoids in ('milk', 'egg', 'nuts', 'fish', 'gluten')),
    points integer not null check (points >= 0),
    owed integer not null check (owed >= 0)
);
create table suppliers (supplier text primary key, days integer not null check (days > 0));
create table ingredients (
    ingredient text primary key,
    allergen text check (allergen in ('milk', 'egg', 'nuts', 'fish', 'gluten')),
    supplier text not null references suppliers (supplier),
    price integer not null check (price > 0),
    stock integer not null constraint stock_too_low check (stock >= 0)
);
create table dishes (
    dish integer primary key,
    course text not null check (course in ('starter', 'soup', 'main', 'dessert')),
    price integer not null check (price > 0)
);
create table recipes (
    dish integer not null references dishes (dish),
    ingredient text not null references ingredients (ingredient),
    amount integer not null check (amount > 0),
    primary key (dish, ingredient)
);
create table reservations (
    reservation integer primary key,
    guest text not null references guests (guest),
    table_id integer not null references dining_tables (table_id),
    day integer not null,
    people integer not null check (people > 0),
    status text not null check (status in ('booked', 'seated', 'done', 'missed', 'cancelled'))
);
create table vouchers (
    voucher integer primary key,
    value integer not null check (value > 0),
    remaining integer not null check (remaining between 0 and value),
    expires integer not null
);
create table orders (
    order_id integer primary key,
    guest text not null references guests (guest),
    reservation integer unique references reservations (reservation),
    waiter text not null references waiters (waiter),
    day integer not null,
    cover integer not null check (cover >= 0),
    total integer not null check (total >= 0),
    voucher integer references vouchers (voucher),
    discount integer not null check (discount between 0 and total),
    tip integer not null check (tip >= 0),
    status text not null check (status in ('open', 'paid'))
);
create table items (
    order_id integer not null references orders (order_id),
    dish integer not null references dishes (dish),
    quantity integer not null check (quantity > 0),
    price integer not null check (price > 0),
    primary key (order_id, dish)
);
create index reservations_guest on reservations (guest);
create index reservations_day on reservations (day, table_id);
create index orders_guest on orders (guest);
