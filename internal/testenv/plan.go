package testenv

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Hot is a statement whose cost must not grow with its tables.
type Hot struct {
	SQL     string
	Args    []any    // as many and as long as they get
	Indexes []string // that it searches; none for a plain insert
	// Sorts allows a sort of what came with the arguments, or was found by them. A
	// sort of anything else is one of the whole backlog.
	Sorts bool
	// Open allows a scan of a whole index that holds open rows only.
	Open bool
}

// Check fails the test unless both of the statement's plans search its indexes,
// read no table and no index from end to end, and sort nothing. One plan is made
// for the arguments. The other is made for any: PostgreSQL may change to it after
// five executions on a connection. Nothing is executed; the tables need enough
// rows, and to be analyzed.
func (h Hot) Check(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()

	// EXPLAIN with parameters plans for their values, whatever plan_cache_mode is.
	h.check(t, "for its arguments", explained(t, conn.Conn(), "explain (costs off) "+h.SQL, h.Args...))

	exec := func(sql string) {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`set plan_cache_mode = force_generic_plan`)
	exec(`prepare hot as ` + h.SQL) // the types of parameters are inferred, as they are for pgx
	nulls := ""
	if len(h.Args) > 0 {
		nulls = "(null" + strings.Repeat(", null", len(h.Args)-1) + ")"
	}
	h.check(t, "for any arguments", explained(t, conn.Conn(), "explain (costs off) execute hot"+nulls, pgx.QueryExecModeSimpleProtocol))
	exec(`deallocate hot`)
	exec(`reset plan_cache_mode`)
}

func explained(t testing.TB, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return lines
}

var (
	indexScan = regexp.MustCompile(`Index (?:Only )?Scan (?:Backward )?using (\w+)|Bitmap Index Scan on (\w+)`)
	sorting   = regexp.MustCompile(`^\s*(?:->\s+)?(?:Incremental )?Sort$`)
)

func (h Hot) check(t testing.TB, kind string, plan []string) {
	t.Helper()
	var faults []string
	searched := map[string]bool{}
	for i, line := range plan {
		if strings.Contains(line, "Seq Scan on ") {
			faults = append(faults, "it reads a whole table")
		}
		if sorting.MatchString(line) && !h.Sorts {
			faults = append(faults, "it sorts")
		}
		if m := indexScan.FindStringSubmatch(line); m != nil {
			index := m[1] + m[2]
			switch {
			case i+1 < len(plan) && strings.Contains(plan[i+1], "Index Cond: "), h.Open:
				searched[index] = true
			default:
				faults = append(faults, "it reads the whole of "+index)
			}
		}
	}
	for _, index := range h.Indexes {
		if !searched[index] {
			faults = append(faults, fmt.Sprintf("it does not search %s", index))
		}
	}
	if len(faults) > 0 {
		t.Errorf("planned %s: %s\n%s", kind, strings.Join(faults, ", "), strings.Join(plan, "\n"))
	}
}
