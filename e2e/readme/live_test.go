package readme

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// compareTables holds what the pages say of a running Baton against one.
func (r *reader) compareTables() {
	r.compareMetrics()
	r.compareBroker()
	r.compareDatabases()
}

func (r *reader) fetch(url, user, password string) []byte {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %s, %v\n%s", req.URL.Redacted(), res.Status, err, body)
	}
	return body
}

// same reports names that only one of two lists has.
func (r *reader) same(what string, real, shown []string) {
	r.t.Helper()
	for _, list := range []*[]string{&real, &shown} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	if diff := cmp.Diff(real, shown); diff != "" {
		r.t.Errorf("%s (-real +shown):\n%s", what, diff)
	}
}

func (r *reader) compareMetrics() {
	var real, shown []string
	for _, addr := range []string{r.orderAddr, r.inventoryAddr} {
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (baton_\w+)`).FindAllSubmatch(r.fetch("http://"+addr+"/metrics", "", ""), -1) {
			real = append(real, string(m[1]))
		}
	}
	for _, row := range rows(r.t, read(r.t, "docs/operations.md"), "metric", "meaning", "worth an alert") {
		name, _, _ := strings.Cut(row[0], "{")
		shown = append(shown, name)
	}
	r.same("metrics in docs/operations.md", real, shown)
}

// file is one of the JSON files that up keeps beside its data.
func (r *reader) file(name string) map[string]string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.clone, ".baton", "data", name))
	if err != nil {
		r.t.Fatal(err)
	}
	found := map[string]string{}
	if err := json.Unmarshal(data, &found); err != nil {
		r.t.Fatal(err)
	}
	return found
}

func (r *reader) compareBroker() {
	page := read(r.t, "docs/architecture.md")
	address := regexp.MustCompile(`RabbitMQ\s+(http://\S+)\s+management`).FindStringSubmatch(r.up.text())
	if address == nil {
		r.t.Fatalf("up does not say where the management page is:\n%s", r.up.text())
	}
	password := r.file("secrets.json")["rabbitmq administrator"]
	list := func(path string, out any) {
		r.t.Helper()
		if err := json.Unmarshal(r.fetch(address[1]+"/api/"+path, "baton", password), out); err != nil {
			r.t.Fatal(err)
		}
	}

	var queues []struct {
		Name      string
		Arguments map[string]any
	}
	list("queues/%2F", &queues)
	var real, shown []string
	for _, q := range queues {
		for name, value := range q.Arguments {
			real = append(real, fmt.Sprintf("%s %s=%v", q.Name, name, value))
		}
	}
	// "the same with" means: as the row above, but for what follows.
	above := map[string]string{}
	for _, row := range rows(r.t, page, "queue", "arguments") {
		args := map[string]string{}
		if strings.HasPrefix(row[1], "the same with") {
			args = above
		}
		for _, m := range regexp.MustCompile(`(x-[a-z-]+)=([\w.-]+)`).FindAllStringSubmatch(row[1], -1) {
			args[m[1]] = m[2]
		}
		for name, value := range args {
			shown = append(shown, row[0]+" "+name+"="+value)
		}
		above = args
	}
	r.same("queues in docs/architecture.md", real, shown)

	var exchanges []struct{ Name, Type string }
	list("exchanges/%2F", &exchanges)
	types := map[string]string{}
	for _, e := range exchanges {
		types[e.Name] = e.Type
	}
	var bindings []struct {
		Source, Destination string
		RoutingKey          string `json:"routing_key"`
	}
	list("bindings/%2F", &bindings)
	real, shown = nil, nil
	for _, b := range bindings {
		if b.Source != "" { // the default exchange has every queue
			real = append(real, fmt.Sprint(b.Source, types[b.Source], b.Destination, b.RoutingKey))
		}
	}
	for _, row := range rows(r.t, page, "from exchange", "type", "to queue", "key") {
		shown = append(shown, fmt.Sprint(row[0], row[1], row[2], row[3]))
	}
	r.same("bindings in docs/architecture.md", real, shown)

	var rights []struct{ User, Configure, Write, Read string }
	list("permissions", &rights)
	real, shown = nil, nil
	for _, p := range rights {
		if p.User != "baton" { // the administrator of "up"
			real = append(real, fmt.Sprintln(p.User, p.Configure, p.Write, p.Read))
		}
	}
	for _, row := range rows(r.t, page, "broker user", "configure", "write", "read") {
		line := fmt.Sprintln(row[0], row[1], row[2], row[3])
		shown = append(shown, strings.ReplaceAll(line, "nothing", ""))
	}
	r.same("rights in docs/architecture.md", real, shown)
}

func (r *reader) compareDatabases() {
	var real, shown []string
	connections := r.file("connections.json")
	for _, service := range []string{"order", "inventory"} {
		conn, err := pgx.Connect(r.t.Context(), connections[service])
		if err != nil {
			r.t.Fatal(err)
		}
		const tables = `select current_database() || ' ' || tablename from pg_tables where schemaname = 'public' and tablename <> 'goose_db_version'`
		found, err := conn.Query(r.t.Context(), tables)
		if err == nil {
			var names []string
			names, err = pgx.CollectRows(found, pgx.RowTo[string])
			real = append(real, names...)
		}
		if err := errors.Join(err, conn.Close(r.t.Context())); err != nil {
			r.t.Fatalf("tables of %s: %v", service, err)
		}
	}
	for _, row := range rows(r.t, read(r.t, "docs/architecture.md"), "database", "table", "what", "pruned") {
		shown = append(shown, row[0]+" "+row[1])
	}
	r.same("tables in docs/architecture.md", real, shown)
}
