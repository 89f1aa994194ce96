-- +goose Up

-- What there is of each sku and how much of it orders hold. The check is the
-- last line of defence: no statement, whoever sends it, can sell the same unit
-- twice.
create table stock (
    sku      text primary key,
    on_hand  bigint not null,
    reserved bigint not null default 0,
    constraint stock_reserved check (0 <= reserved and reserved <= on_hand)
);

-- One row for each order ever heard of, whatever became of it. Every handler
-- locks it first, so that create and cancel of one order cannot pass each
-- other, and it is never pruned, so that an event that comes back after its
-- inbox row was forgotten finds the order decided.
create table inventory_orders (
    order_id        text primary key,
    state           text not null,
    reason          text,                   -- why it was rejected
    event_id        text not null,          -- the first event of the order that arrived
    cancel_event_id text,                   -- the order.cancelled that released it
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    constraint inventory_orders_state check (state in ('reserved', 'rejected', 'released', 'cancelled_first')),
    constraint inventory_orders_reason check ((state = 'rejected') = (reason is not null)),
    constraint inventory_orders_cancel check ((state = 'released') = (cancel_event_id is not null))
);

create table inventory_reservations (
    order_id    text not null,
    sku         text not null,
    quantity    bigint not null,            -- of all lines of the order with this sku
    status      text not null,
    event_id    text not null,              -- the order.created it was made for
    created_at  timestamptz not null default now(),
    released_at timestamptz,
    unique (order_id, sku),
    constraint inventory_reservations_quantity check (quantity > 0),
    constraint inventory_reservations_status check (status in ('reserved', 'released')),
    constraint inventory_reservations_released check ((status = 'released') = (released_at is not null))
);

-- From here on the text of shared/outbox/schema.sql; a test compares the two.

create table outbox_messages (
    event_id        text primary key,
    aggregate_id    text not null,
    sequence        bigint not null check (sequence > 0),
    event_type      text not null,
    payload         jsonb not null,
    headers         jsonb not null default '{}',
    occurred_at     timestamptz not null,
    created_at      timestamptz not null default now(),
    status          text not null default 'Pending',
    attempt_count   integer not null default 0,
    claim_count     integer not null default 0,
    lone_count      integer not null default 0,
    next_attempt_at timestamptz not null default now(),
    last_error      text,
    locked_by       text,
    locked_until    timestamptz,
    published_at    timestamptz,
    failed_at       timestamptz,
    unique (aggregate_id, sequence),
    constraint outbox_status check (status in ('Pending', 'Processing', 'Published', 'Failed')),
    constraint outbox_published check ((status = 'Published') = (published_at is not null)),
    constraint outbox_failed check ((status = 'Failed') = (failed_at is not null)),
    constraint outbox_claimed check ((status = 'Processing') = (locked_by is not null)
                                 and (status = 'Processing') = (locked_until is not null))
) with (fillfactor = 40); -- room on the page for all its rows once more, claimed, so that a claim is a HOT update

-- A claim reads this index and changes none of its columns.
create index ix_outbox_dispatch on outbox_messages (next_attempt_at, event_id)
    where published_at is null and failed_at is null;
create index ix_outbox_failed on outbox_messages (failed_at) where failed_at is not null;
create index ix_outbox_prune on outbox_messages (published_at) where published_at is not null;

-- From here on the text of shared/inbox/schema.sql; a test compares the two.

create table inbox_messages (
    consumer_name text not null,
    event_id      text not null,
    received_at   timestamptz not null default now(),
    primary key (consumer_name, event_id)
);
create index ix_inbox_prune on inbox_messages (received_at);

-- Deliveries that may have killed their consumer before, while each is handled
-- alone; empty in good times.
create table inbox_suspects (
    consumer_name text not null,
    event_id      text not null,
    lone_count    integer not null,
    marked_at     timestamptz not null default now(),
    primary key (consumer_name, event_id)
);

-- +goose Down
drop table inbox_suspects;
drop table inbox_messages;
drop table outbox_messages;
drop table inventory_reservations;
drop table inventory_orders;
drop table stock;
