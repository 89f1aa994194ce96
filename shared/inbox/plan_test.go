package inbox

import (
	"fmt"
	"testing"
	"time"

	"example.com/baton/internal/testenv"
)

// B92: what the inbox asks for a batch costs the batch, however many ids are
// remembered.
func TestHotStatementsUseTheirIndexes(t *testing.T) {
	t.Parallel()
	db := testenv.Schema(t)
	for _, sql := range []string{
		Schema,
		`insert into inbox_messages (consumer_name, event_id, received_at)
			select 'stock', 'e' || n, now() - n * interval '1 second' from generate_series(1, 200000) n`,
		`insert into inbox_suspects (consumer_name, event_id, lone_count) select 'stock', 'e' || n, 1 from generate_series(1, 100000) n`,
		`analyze inbox_messages, inbox_suspects`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ids := make([]string, 250)
	for i := range ids {
		ids[i] = fmt.Sprintf("e%d", i)
	}
	const key, prune, suspects = "inbox_messages_pkey", "ix_inbox_prune", "inbox_suspects_pkey"
	for name, s := range map[string]testenv.Hot{
		"record": {SQL: recordSQL, Args: []any{"stock", ids}, Sorts: true},
		"forget": {SQL: forgetSQL, Args: []any{"stock", ids}, Indexes: []string{key}},
		"mark":   {SQL: markSQL, Args: []any{"stock", "e1"}},
		"clear":  {SQL: clearSQL, Args: []any{"stock", "e1"}, Indexes: []string{suspects}},
		"prune":  {SQL: pruneSQL, Args: []any{time.Hour, pruneAtOnce}, Indexes: []string{prune}},
	} {
		t.Run(name, func(t *testing.T) { s.Check(t, db) })
	}
}
