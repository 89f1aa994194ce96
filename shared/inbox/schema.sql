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

-- Pruning reads its index from the oldest entry on and steps over those of every
-- row that is gone, until a vacuum removes them. With the server's defaults the
-- vacuum of a large table comes late and may leave out the indexes.
alter table inbox_messages set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, vacuum_index_cleanup = on);
