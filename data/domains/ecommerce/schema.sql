-- A shop. Money is whole dollars, time is days since the shop opened, and the clock is data.
create table clock (id integer primary key check (id = 1), day integer not null);
create table cities (city text primary key, zone integer not null);
create table tiers (tier text primary key, percent integer not null check (percent between 0 and 50));
create table suppliers (
    supplier text primary key,
    city text not null references cities (city),
    days integer not null check (days > 0)
);
create table products (
    product integer primary key,
    kind text not null,
    supplier text not null references suppliers (supplier),
    price integer not null check (price > 0),
    stock integer not null constraint stock_too_low check (stock >= 0)
);
create table customers (
    customer text primary key,
    city text not null references cities (city),
    tier text not null references tiers (tier),
    credit integer not null constraint credit_too_low check (credit >= 0)
);
create table orders (
    order_id integer primary key,
    customer text not null references customers (customer),
    day integer not null,
    status text not null check (status in ('open', 'shipped', 'delivered', 'returned', 'cancelled')),
    total integer not null check (total >= 0)
);
create table lines (
    order_id integer not null references orders (order_id),
    product integer not null references products (product),
    quantity integer not null check (quantity > 0),
    price integer not null check (price > 0),
    primary key (order_id, product)
);
create table coupons (
    coupon integer primary key,
    percent integer not null check (percent between 1 and 50),
    expires integer not null,
    order_id integer unique references orders (order_id)
);
create table reviews (
    customer text not null references customers (customer),
    product integer not null references products (product),
    stars integer not null check (stars between 1 and 5),
    primary key (customer, product)
);
create index orders_customer on orders (customer);
create index products_kind on products (kind);
