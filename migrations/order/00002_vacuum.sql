-- +goose Up

-- This is text of shared/outbox/schema.sql and shared/inbox/schema.sql; a test
-- compares them.

-- A claim reads its index from the oldest entry on and steps over those of every
-- row that has left, until a vacuum removes them; pruning does the same. With the
-- server's defaults the vacuum of a large table comes late and may leave out the
-- indexes.
alter table outbox_messages set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, vacuum_index_cleanup = on);

-- Pruning reads its index from the oldest entry on and steps over those of every
-- row that is gone, until a vacuum removes them. With the server's defaults the
-- vacuum of a large table comes late and may leave out the indexes.
alter table inbox_messages set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, vacuum_index_cleanup = on);

-- The same holds for the keys.
alter table idempotency_keys set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, vacuum_index_cleanup = on);

-- +goose Down
alter table idempotency_keys reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, vacuum_index_cleanup);
alter table inbox_messages reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, vacuum_index_cleanup);
alter table outbox_messages reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, vacuum_index_cleanup);
