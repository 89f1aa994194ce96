package servers_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/testenv"
)

// The servers that `./baton test` started are of no use here: these tests are
// about starting them.
func kind(t *testing.T) servers.Kind {
	t.Helper()
	k, err := servers.ParseKind(os.Getenv(servers.TestServersVar))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("$%s: %v", servers.TestServersVar, err)
		}
		t.Skipf("starts servers, and $%s does not say which kind: run the tests by ./baton test", servers.TestServersVar)
	}
	return k
}

// processesOnly is for what holds for processes of this machine only: the kernel
// ends them with their owner, and /proc shows what is left.
func processesOnly(t *testing.T) {
	t.Helper()
	if k := kind(t); k != servers.Local {
		t.Skipf("about processes of this machine, and this run's servers are %s: run the tests by ./baton test --servers local", k)
	}
}

func tempHome(t *testing.T) *servers.Home {
	t.Helper()
	clone, err := servers.ClonePath(".")
	if err != nil {
		t.Fatal(err)
	}
	home, err := servers.TempHome(clone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := home.Close(); err != nil {
			t.Error(err)
		}
	})
	return home
}

func stopAtEnd(t *testing.T, s interface{ Stop(context.Context) error }) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestPostgresLife(t *testing.T) {
	t.Parallel()
	home := tempHome(t)
	pg, err := servers.NewPostgres(servers.Config{Kind: kind(t), Home: home, Progress: func(l string) { t.Log(l) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, pg)
	exec := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	count := func() (n int) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if err := conn.QueryRow(t.Context(), `select count(*) from kept`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	exec(`create table kept (n int)`)
	downs := []struct {
		name string
		down func() error
	}{
		{"fast restart", func() error { return pg.Restart(t.Context(), servers.Fast) }},
		{"immediate restart", func() error { return pg.Restart(t.Context(), servers.Immediate) }},
		{"kill and start", func() error { return errors.Join(pg.Kill(), pg.Start(t.Context())) }},
	}
	for i, d := range downs {
		exec(`insert into kept values (1)`)
		begin := time.Now()
		if err := d.down(); err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		t.Logf("%s took %s", d.name, time.Since(begin).Round(time.Millisecond))
		if got, want := count(), i+1; got != want {
			t.Errorf("after %s: %d rows, want %d", d.name, got, want)
		}
	}
	select {
	case err := <-pg.Exited():
		t.Errorf("exits that were asked for were reported: %v", err)
	default:
	}

	t.Run("says what it is", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		for setting, want := range map[string]string{
			"fsync": "on", "password_encryption": "scram-sha-256", "lc_collate": "C.UTF-8", "server_encoding": "UTF8",
		} {
			var got string
			// lc_collate is a column and no setting from PostgreSQL 16 on.
			const show = `select case $1 when 'lc_collate' then (select datcollate from pg_database where datname = current_database()) else current_setting($1) end`
			if err := conn.QueryRow(t.Context(), show, setting).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("%s = %q, want %q", setting, got, want)
			}
		}
		if _, err := pgx.Connect(t.Context(), pg.URLFor("postgres", "wrong", "postgres")); err == nil {
			t.Error("a wrong password was let in")
		}
	})
}

func TestBrokerLife(t *testing.T) {
	t.Parallel()
	home := tempHome(t)
	broker, err := servers.NewBroker(servers.Config{Kind: kind(t), Home: home, Progress: func(l string) { t.Log(l) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, broker)

	publish := func() {
		t.Helper()
		ch := channel(t, broker)
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", "kept", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := confirm.WaitContext(t.Context()); err != nil || !ok {
			t.Fatalf("confirm: %v %v", ok, err)
		}
	}
	downs := []struct {
		name string
		down func() error
	}{
		{"restart", func() error { return broker.Restart(t.Context()) }},
		{"kill and start", func() error { return errors.Join(broker.Kill(), broker.Start(t.Context())) }},
	}
	for i, d := range downs {
		publish()
		begin := time.Now()
		if err := d.down(); err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		t.Logf("%s took %s", d.name, time.Since(begin).Round(time.Millisecond))
		testenv.Eventually(t, 20*time.Second, "the messages after a "+d.name, func() error {
			q, err := channel(t, broker).QueueDeclarePassive("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			if err == nil && q.Messages != i+1 {
				err = errors.New("messages are missing")
			}
			return err
		})
	}
	out, err := broker.Ctl(t.Context(), "-q", "eval", "application:get_env(rabbit, dead_letter_worker_publisher_confirm_timeout).")
	if err != nil || !strings.Contains(out, "5000") {
		t.Errorf("confirm timeout of dead-lettering: %q %v, want 5000", out, err)
	}
	if out, err := broker.Ctl(t.Context(), "-q", "list_users"); err != nil || strings.Contains(out, "guest") {
		t.Errorf("users: %q %v, want no guest", out, err)
	}
	select {
	case err := <-broker.Exited():
		t.Errorf("exits that were asked for were reported: %v", err)
	default:
	}
}

func channel(t *testing.T, b *servers.Broker) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(b.AdminURL("/"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) // often lost by then, with the broker
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// A pair next to those of the other tests, stopped: nothing is left of it.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	processesOnly(t)
	home := tempHome(t)
	pair, err := servers.NewPair(servers.Config{Kind: servers.Local, Home: home})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := pair.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("started after %s", time.Since(begin).Round(time.Millisecond))
	if len(processesOf(t, home.Path())) == 0 {
		t.Error("found no process of a pair that runs, so this test proves nothing")
	}
	if err := pair.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if left := processesOf(t, home.Path()); len(left) > 0 {
		t.Errorf("left running:\n%s", strings.Join(left, "\n"))
	}
}

// An owner that is killed cannot stop its servers; the kernel and the next
// owner see to it.
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	processesOnly(t)
	clone := t.TempDir()
	if err := os.Chmod(clone, 0o711); err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(os.Args[0], "-test.run=^$")
	owner.Env = append(os.Environ(), "BATON_TEST_OWN="+clone)
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := out.Read(buf) // the path of the home, once both servers are ready
	if err != nil {
		t.Fatalf("owner: %v", err)
	}
	path := string(buf[:n])

	if _, err := servers.OpenHome(clone, "data"); !errors.Is(err, servers.ErrBusy) {
		t.Errorf("a second owner: %v, want ErrBusy", err)
	}
	if len(processesOf(t, path)) == 0 {
		t.Error("found no process of the owner")
	}
	if err := owner.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // killed, as asked

	home, err := servers.OpenHome(clone, "data")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := home.Remove(); err != nil {
			t.Error(err)
		}
		_ = os.Remove(filepath.Dir(path)) // the folder of this clone, where root keeps it elsewhere
	})
	if left := processesOf(t, path); len(left) > 0 {
		t.Errorf("left running:\n%s", strings.Join(left, "\n"))
	}
}

// A server that dies is reported, and can be started again with its data.
func TestExited(t *testing.T) {
	t.Parallel()
	home := tempHome(t)
	pg, err := servers.NewPostgres(servers.Config{Kind: kind(t), Home: home})
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, pg)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	// The server's own words for "end": nobody here asked Postgres to.
	_, _ = conn.Exec(t.Context(), `copy (select 1) to program 'kill -QUIT $(head -1 "$PGDATA/postmaster.pid" 2>/dev/null || head -1 postmaster.pid)'`)
	select {
	case err := <-pg.Exited():
		t.Log(err)
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was said")
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func processesOf(t *testing.T, home string) []string {
	t.Helper()
	var found []string
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		env, _ := os.ReadFile(filepath.Join(dir, "environ")) // gone, or not ours
		cmd, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.Contains(string(env), home) || strings.Contains(string(cmd), home) {
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return found
}

// Homes come and go in many processes at once, and each of them sweeps.
func TestTempHomesAtOnce(t *testing.T) {
	t.Parallel()
	clone := t.TempDir()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			home, err := servers.TempHome(clone)
			if err != nil {
				t.Error(err)
				return
			}
			secret, err := home.Secret("s")
			if err != nil {
				t.Error(err)
			}
			servers.Sweep(clone)
			if again, err := home.Secret("s"); err != nil || again != secret {
				t.Errorf("the home of a live owner was swept: %v", err)
			}
			if err := home.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(home.Path()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a closed temporary home: %v, want none", err)
			}
		})
	}
	wg.Wait()
	last, err := servers.TempHome(clone)
	if err != nil {
		t.Fatal(err)
	}
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(last.Path()))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	_ = os.Remove(filepath.Dir(last.Path())) // for root it is not in clone
}
