package inventory

import (
	"context"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// tracer records the statements of a pool and how they ended.
type tracer struct {
	mu     sync.Mutex
	all    []string // "UPDATE 1: update stock …"
	failed []string // the errors
}

// take returns the statements since it was last called.
func (t *tracer) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.all
	t.all = nil
	return all
}

// errors returns the errors so far. One that a retry has hidden is among them.
func (t *tracer) errors() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *tracer) add(sql, tag string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, tag+": "+strings.TrimSpace(sql))
	if err != nil {
		t.failed = append(t.failed, err.Error())
	}
}

type sqlKey struct{}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, sqlKey{}, d.SQL)
}

func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	t.add(ctx.Value(sqlKey{}).(string), d.CommandTag.String(), d.Err)
}

func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (t *tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	t.add(d.SQL, d.CommandTag.String(), d.Err)
}

func (t *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
