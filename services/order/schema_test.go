package order

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/outbox"
)

// What the catalog knows of the tables of a library: columns, constraints,
// indexes and storage.
const catalogSQL = `
with mine as (
  select c.oid, c.relname, c.reloptions::text from pg_class c
  where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
    and (c.relname like 'outbox%' or c.relname like 'inbox%')
)
select format('%s storage %s', relname, coalesce(reloptions, '')) from mine
union all
select format('%s.%s %s not null %s default %s', m.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
              coalesce(pg_get_expr(d.adbin, d.adrelid), ''))
  from mine m join pg_attribute a on a.attrelid = m.oid and a.attnum > 0 and not a.attisdropped
  left join pg_attrdef d on d.adrelid = m.oid and d.adnum = a.attnum
union all
select format('%s constraint %s %s', m.relname, k.conname, pg_get_constraintdef(k.oid)) from mine m join pg_constraint k on k.conrelid = m.oid
union all
select format('%s index %s', m.relname, replace(pg_get_indexdef(i.indexrelid), current_schema() || '.', '')) from mine m join pg_index i on i.indrelid = m.oid
order by 1`

// The migrations make the tables that the libraries document, by the catalog.
func TestMigrationsMakeTheLibrariesTables(t *testing.T) {
	t.Parallel()
	catalog := func(db *pgxpool.Pool) []string {
		t.Helper()
		rows, err := db.Query(t.Context(), catalogSQL)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	libraries := testenv.Schema(t)
	for _, ddl := range []string{outbox.Schema, inbox.Schema} {
		if _, err := libraries.Exec(t.Context(), ddl); err != nil {
			t.Fatal(err)
		}
	}
	want := catalog(libraries)
	if len(want) < 30 {
		t.Fatalf("the catalog has %d lines only: %q", len(want), want)
	}
	if diff := cmp.Diff(want, catalog(testenv.Pool(t, migrated(t)))); diff != "" {
		t.Errorf("migrations/order (-libraries +migrations):\n%s", diff)
	}
}
