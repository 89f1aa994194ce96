package outage

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// patient is a service whose database is about to be in trouble.
type patient struct {
	t         *testing.T
	processes []*system.Process
	db        *pgxpool.Pool     // as the superuser
	role      string            // the service's own
	server    *servers.Postgres // if it has one of its own
}

// A consumer's database cannot be used for a while. That is no message's fault:
// none is dead-lettered, none loses an attempt, and when it is over all are
// handled, once.
func TestConsumersDatabase(t *testing.T) {
	t.Parallel()
	for _, trouble := range []struct {
		name      string
		of        string // "order" or "inventory"
		ownServer bool
		begin     func(*patient) (end func())
		says      []string // what /readyz has to say meanwhile, if that is certain
	}{
		{"stopped", "inventory", true, (*patient).stop, []string{"database unavailable"}},
		{"disk full", "inventory", true, (*patient).fillDisk, []string{"holding deliveries", "No space left on device", "53100"}},
		{"rights revoked", "inventory", false, revoke("stock, inventory_orders, inventory_reservations, inbox_messages, inbox_suspects, outbox_messages"),
			[]string{"holding deliveries", "permission denied", "42501"}},
		{"rights on answers revoked", "order", false, revoke("order_answers"), []string{"holding deliveries", "permission denied", "42501"}},
		{"read-only", "inventory", false, (*patient).makeReadOnly, []string{"holding deliveries", "read-only", "25006"}},
		{"no more connections", "inventory", false, (*patient).allowNoConnection, []string{"database unavailable", "too many connections", "53300"}},
		{"pool exhausted", "inventory", false, (*patient).exhaustPool, nil},
		{"row locked", "inventory", false, (*patient).lockRow, nil},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			t.Parallel()
			var is setup
			if trouble.ownServer {
				is.inventoryOn = testenv.OwnPostgres(t)
			}
			w := begin(t, is)
			p := &patient{t: t, processes: w.inventories, db: w.InventoryDB, server: is.inventoryOn}
			if trouble.of == "order" {
				p.processes, p.db = w.orders, w.OrderDB
			}
			p.role = serviceRole(t, p.db)
			w.under(func() {
				end := trouble.begin(p)
				outage := time.After(lasts(10*time.Second, time.Minute))
				for _, process := range p.processes {
					testenv.Eventually(t, 20*time.Second, process.Name+" says what is wrong", func() error {
						r, err := ready(process)
						if err != nil {
							return err
						}
						return r.says(trouble.says...)
					})
				}
				<-outage
				if w.sum("baton_consumer_held", p.processes...) == 0 && trouble.says != nil {
					t.Error("no delivery is held: the trouble met none")
				}
				wantNobodyBlamed(t, w) // counts of one of them are about to begin anew
				p.processes[1].Stop()  // it ends when told to, whatever it waits for
				p.processes[1].Launch()
				end()
			})
			w.recovered()
			wantNobodyBlamed(t, w)
		})
	}
}

// The schemas change under the running services, as a migration would, while
// orders come in. Statements that were prepared before are no reason for anything
// but a passing error. (B90)
func TestSchemaChanged(t *testing.T) {
	t.Parallel()
	w := begin(t, setup{})
	w.under(func() {
		for i, change := range []string{
			`alter table outbox_messages add column note text`,
			`alter table inbox_messages add column note text`,
			`alter table outbox_messages alter column event_type type varchar(200)`,
			`alter table inbox_messages alter column event_id type varchar(200)`,
			`alter table orders alter column customer_id type varchar(200)`,
			`alter table order_answers alter column event_id type varchar(200)`,
			`alter table idempotency_keys alter column answer type varchar`,
			`alter table inventory_orders alter column reason type varchar(2000)`,
			`alter table inventory_reservations add column note text`,
			`alter table stock alter column sku type varchar(200)`,
		} {
			table := strings.Fields(change)[2]
			changed := 0
			for _, db := range []*pgxpool.Pool{w.OrderDB, w.InventoryDB} {
				var there bool
				if err := db.QueryRow(t.Context(), `select to_regclass($1) is not null`, table).Scan(&there); err != nil {
					t.Fatal(err)
				}
				if !there {
					continue
				}
				changed++
				if _, err := db.Exec(t.Context(), change); err != nil {
					t.Fatalf("%s: %v", change, err)
				}
			}
			if changed == 0 {
				t.Errorf("change %d: there is no table %s", i, table)
			}
			pause(t, lasts(300*time.Millisecond, 3*time.Second))
		}
	})
	w.recovered()
	wantNobodyBlamed(t, w)
	w.wantOnlyAnswers(http.StatusCreated, http.StatusServiceUnavailable)
}

// wantNobodyBlamed fails the test if an outage was taken for some message's own
// fault.
func wantNobodyBlamed(t *testing.T, w *world) {
	t.Helper()
	for _, p := range w.all() {
		for _, name := range []string{"baton_consumer_retried_total", "baton_consumer_dead_lettered_total", "baton_relay_failed_total"} {
			if n := w.sum(name, p); n > 0 {
				t.Errorf("%s of %s is %d, want 0", name, p.Name, n)
			}
		}
		for id, n := range errorsLogged(p) {
			t.Errorf("%s has logged %d errors about %q", p.Name, n, id)
		}
	}
}

// serviceRole is the role that a service uses its database with.
func serviceRole(t *testing.T, db *pgxpool.Pool) (role string) {
	t.Helper()
	const find = `
select distinct grantee from information_schema.role_table_grants g join pg_tables t on t.tablename = g.table_name
where g.table_name = 'goose_db_version' and g.grantee not in ('PUBLIC', t.tableowner)`
	if err := db.QueryRow(t.Context(), find).Scan(&role); err != nil {
		t.Fatal(err)
	}
	return role
}

func (p *patient) exec(statements ...string) {
	p.t.Helper()
	for _, sql := range statements {
		if _, err := p.db.Exec(p.t.Context(), sql); err != nil {
			p.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// disconnect ends the service's sessions: what is changed of a role holds for
// new ones.
func (p *patient) disconnect() {
	p.t.Helper()
	p.exec(`select pg_terminate_backend(pid) from pg_stat_activity where usename = '` + p.role + `'`)
}

func (p *patient) stop() (end func()) {
	if err := p.server.Kill(); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		if err := p.server.Start(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
}

func revoke(tables string) func(p *patient) (end func()) {
	return func(p *patient) (end func()) {
		p.exec(`revoke all on ` + tables + ` from ` + p.role)
		return func() { p.exec(`grant select, insert, update, delete on ` + tables + ` to ` + p.role) }
	}
}

func (p *patient) makeReadOnly() (end func()) {
	p.exec(`alter role ` + p.role + ` set default_transaction_read_only = on`)
	p.disconnect()
	return func() {
		p.exec(`alter role ` + p.role + ` reset default_transaction_read_only`)
		p.disconnect()
	}
}

func (p *patient) allowNoConnection() (end func()) {
	p.exec(`alter role ` + p.role + ` connection limit 0`)
	p.disconnect()
	return func() { p.exec(`alter role ` + p.role + ` connection limit -1`) }
}

func (p *patient) lockRow() (end func()) {
	return lock(p.t, p.db, `select from stock where sku = 'SKU-1' for update`)
}

// exhaustPool has requests wait for a locked table, each with a connection of
// the service in its hands, until there is none left for a delivery.
func (p *patient) exhaustPool() (end func()) {
	release := lock(p.t, p.db, `lock table stock in access exclusive mode`)
	ctx, stop := context.WithCancel(p.t.Context())
	var requests sync.WaitGroup
	for _, process := range p.processes {
		for range 24 {
			requests.Go(func() {
				for ctx.Err() == nil {
					// Its answer, or that there is none in time, is of no interest.
					if req, err := http.NewRequestWithContext(ctx, http.MethodGet, process.URL()+"/stock", nil); err == nil {
						if res, err := http.DefaultClient.Do(req); err == nil {
							_ = res.Body.Close()
						}
					}
				}
			})
		}
	}
	p.t.Cleanup(stop)
	for _, process := range p.processes {
		testenv.Eventually(p.t, 20*time.Second, process.Name+" has no connection left", func() error {
			used, err := process.ReadMetric("baton_database_connections_in_use")
			if err != nil {
				return err
			}
			most, err := process.ReadMetric("baton_database_connections_max")
			if err != nil {
				return err
			}
			return testenv.Want(used, most)
		})
	}
	return func() {
		stop()
		release()
		requests.Wait()
		http.DefaultClient.CloseIdleConnections()
	}
}

// fillDisk leaves no room for another row. A container has a small disk of its
// own for that; on the machine itself the disk is everybody's, and the database
// only says so.
func (p *patient) fillDisk() (end func()) {
	if os.Getenv(servers.TestServersVar) != string(servers.Docker) {
		p.exec(`create function disk_is_full() returns trigger language plpgsql as
			$$ begin raise exception 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$`,
			`create trigger disk_is_full before insert on inventory_reservations execute function disk_is_full()`)
		return func() { p.exec(`drop trigger disk_is_full on inventory_reservations`) }
	}
	const disk = "/dev/shm"
	program := func(command string) { p.exec(fmt.Sprintf(`copy (select) to program '%s'`, command)) }
	program("mkdir -m 700 " + disk + "/small")
	p.exec(`create tablespace small location '`+disk+`/small'`,
		`alter table inventory_reservations set tablespace small`)
	program("cat /dev/zero > " + disk + "/filler; true")
	return func() { program("rm " + disk + "/filler") }
}
