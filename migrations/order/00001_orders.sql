-- +goose Up

-- Orders take their numbers from here in blocks, so numbers have gaps and their
-- order says nothing: created_at does.
create sequence order_numbers;

create table orders (
    order_id      text primary key,         -- ORD-20260715-000001
    event_id      text not null,            -- of its order.created
    customer_id   text not null,
    amount        numeric not null,         -- with the currency's decimals
    currency      text not null,
    items         jsonb not null,           -- [{"sku": …, "quantity": …}]
    status        text not null default 'created',
    reason        text,                     -- why inventory rejected it
    last_sequence bigint not null default 1, -- of its events
    created_at    timestamptz not null,     -- occurredAt of its order.created
    updated_at    timestamptz not null,
    constraint orders_status check (status in ('created', 'reserved', 'rejected', 'cancelled')),
    constraint orders_amount check (amount > 0)
);

-- Newest first, page by page.
create index ix_orders_newest on orders (created_at desc, order_id desc);
create index ix_orders_newest_by_status on orders (status, created_at desc, order_id desc);

create table idempotency_keys (
    key          text primary key,
    request_hash bytea not null,            -- SHA-256 of the decoded request
    order_id     text not null,
    answer       text not null,             -- the body of the first 201
    created_at   timestamptz not null default now()
);
create index ix_idempotency_keys_prune on idempotency_keys (created_at);

-- Every answer of inventory and what it did to its order.
create table order_answers (
    event_id     text primary key,
    order_id     text not null references orders,
    event_type   text not null,
    reason       text,
    effect       text not null,
    order_status text not null,             -- when the answer arrived
    received_at  timestamptz not null default now(),
    constraint order_answers_effect check (effect in ('applied', 'repeated', 'late', 'contradiction'))
);
create index ix_order_answers_order on order_answers (order_id);
create index ix_order_answers_contradictions on order_answers (received_at) where effect = 'contradiction';

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
drop table order_answers;
drop table idempotency_keys;
drop table orders;
drop sequence order_numbers;
