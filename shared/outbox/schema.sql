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

-- A claim reads its index from the oldest entry on and steps over those of every
-- row that has left, until a vacuum removes them; pruning does the same. With the
-- server's defaults the vacuum of a large table comes late and may leave out the
-- indexes.
alter table outbox_messages set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, vacuum_index_cleanup = on);
