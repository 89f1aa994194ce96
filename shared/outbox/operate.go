package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats is what an operator watches. It reads open rows only, so its cost does
// not grow with what was published.
type Stats struct {
	Pending, Processing, Failed int64
	// OldestPending is how long ago the oldest Pending row was committed, whether
	// it is due or in backoff; zero when there is none.
	OldestPending time.Duration
	// Stuck counts rows whose lease ran out and that nobody has claimed again.
	Stuck int64
	// Blocked counts aggregates that a Failed row holds back from an Ordered
	// relay.
	Blocked int64
}

const statsSQL = `
select
  (select count(*) from outbox_messages where published_at is null and failed_at is null and status = 'Pending'),
  (select count(*) from outbox_messages where published_at is null and failed_at is null and status = 'Processing'),
  (select count(*) from outbox_messages where failed_at is not null),
  (select coalesce(now() - min(created_at), '0') from outbox_messages
     where published_at is null and failed_at is null and status = 'Pending'),
  (select count(*) from outbox_messages
     where published_at is null and failed_at is null and status = 'Processing' and locked_until < now()),
  (select count(distinct f.aggregate_id) from outbox_messages f
     where f.failed_at is not null and exists (select 1 from outbox_messages o
       where o.aggregate_id = f.aggregate_id and o.sequence > f.sequence and o.published_at is null))`

// ReadStats counts the open rows of the table.
func ReadStats(ctx context.Context, db DB) (Stats, error) {
	var s Stats
	err := db.QueryRow(ctx, statsSQL).Scan(&s.Pending, &s.Processing, &s.Failed, &s.OldestPending, &s.Stuck, &s.Blocked)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox stats: %w", err)
	}
	return s, nil
}

// Row is a message as an operator sees it.
type Row struct {
	EventID       string     `json:"eventId"`
	AggregateID   string     `json:"aggregateId"`
	Sequence      int64      `json:"sequence"`
	EventType     string     `json:"eventType"`
	Status        string     `json:"status"`
	Attempts      int        `json:"attempts"`
	CreatedAt     time.Time  `json:"createdAt"`
	NextAttemptAt time.Time  `json:"nextAttemptAt"`
	LastError     string     `json:"lastError,omitempty"`
	LockedBy      string     `json:"lockedBy,omitempty"`
	LockedUntil   *time.Time `json:"lockedUntil,omitempty"`
	PublishedAt   *time.Time `json:"publishedAt,omitempty"`
	FailedAt      *time.Time `json:"failedAt,omitempty"`
}

const rowColumns = `event_id, aggregate_id, sequence, event_type, status, attempt_count, created_at, next_attempt_at,
  coalesce(last_error, ''), coalesce(locked_by, ''), locked_until, published_at, failed_at`

const listSQL = `
select ` + rowColumns + ` from outbox_messages
where published_at is null and ($1 = '' or status = $1)
order by created_at, event_id limit $2`

// List returns up to limit rows that are not published, oldest first; status
// ("Pending", "Processing", "Failed") narrows them down unless it is empty.
func List(ctx context.Context, db DB, status string, limit int) ([]Row, error) {
	return collectRows(ctx, db, "list outbox", listSQL, status, limit)
}

const ofAggregateSQL = `select ` + rowColumns + ` from outbox_messages where aggregate_id = $1 order by sequence`

// OfAggregate returns all rows of an aggregate in sequence, published ones too
// as long as they are kept.
func OfAggregate(ctx context.Context, db DB, aggregateID string) ([]Row, error) {
	return collectRows(ctx, db, "outbox rows of "+aggregateID, ofAggregateSQL, aggregateID)
}

func collectRows(ctx context.Context, db DB, what, sql string, args ...any) ([]Row, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return found, nil
}

// The age limit counts from the commit, and a person decides here that it may
// leave all the same only within it: an older row fails again at once.
const requeueSQL = `
update outbox_messages
set status = 'Pending', failed_at = null, next_attempt_at = now(), attempt_count = 0, claim_count = 0, lone_count = 0
where failed_at is not null and (cardinality($1::text[]) = 0 or event_id = any ($1))
returning event_id`

// Requeue makes Failed rows Pending again with a full budget: those with the
// given ids, or all without any. It returns the ids of the rows it changed. The
// event ids stay, so a message that did arrive once does no harm again.
func Requeue(ctx context.Context, db DB, ids ...string) ([]string, error) {
	return changed(ctx, db, "requeue", requeueSQL, ids)
}

const discardSQL = `
delete from outbox_messages
where failed_at is not null and event_id = any ($1)
returning event_id`

// Discard deletes Failed rows that will never be sent, and returns the ids of
// those it found. With [Relay.Ordered] it lets the rest of the aggregate go.
func Discard(ctx context.Context, db DB, ids ...string) ([]string, error) {
	return changed(ctx, db, "discard", discardSQL, ids)
}

func changed(ctx context.Context, db DB, what, sql string, ids []string) ([]string, error) {
	if ids == nil {
		ids = []string{}
	}
	rows, err := db.Query(ctx, sql, ids)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	done, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return done, nil
}

const pruneSQL = `
delete from outbox_messages where event_id = any (array (
  select event_id from outbox_messages
  where published_at is not null and published_at < now() - $1::interval
  order by published_at limit $2 for update skip locked))`

// pruneAtOnce bounds one delete, so that pruning never holds many rows or a
// long transaction.
const pruneAtOnce = 1000

// Prune deletes rows that were published longer than keep ago, in chunks, and
// returns how many. Pending, Processing and Failed rows are never touched,
// however old.
func Prune(ctx context.Context, db DB, keep time.Duration) (int64, error) {
	var total int64
	for {
		tag, err := db.Exec(ctx, pruneSQL, keep, pruneAtOnce)
		if err != nil {
			return total, fmt.Errorf("prune outbox: %w", err)
		}
		total += tag.RowsAffected()
		if tag.RowsAffected() < pruneAtOnce {
			return total, nil
		}
	}
}
