package zoo

import (
	"maps"
	"strings"
	"testing"
)

func TestList(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := Main(t.Context(), nil, nothing, strings.NewReader(""), &out, &out); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(out.String(), "\n"), len(Mistakes())+1; got != want {
		t.Errorf("%d lines, want %d:\n%s", got, want, &out)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	addresses := map[string]string{"ORDER_DATABASE_URL": "postgres://127.0.0.1:1/db", "ORDER_AMQP_URL": "amqp://127.0.0.1:1"}
	for name, tt := range map[string]struct {
		args []string
		env  map[string]string
		says string
	}{
		"no such mistake": {[]string{"exactly-once"}, addresses, "want the name of one mistake"},
		"two of them":     {[]string{"requeue-loop", "ack-before-commit"}, addresses, "want the name of one mistake"},
		"no addresses":    {[]string{"requeue-loop"}, addresses, "$INVENTORY_DATABASE_URL and $INVENTORY_AMQP_URL are required"},
		"no such fault":   {[]string{"returns-ignored"}, with(addresses, "ZOO_FAULT", "explode at sent"), `$ZOO_FAULT is "explode at sent": want`},
		"no number":       {[]string{"returns-ignored"}, with(addresses, "ZOO_ORDERS", "many"), `$ZOO_ORDERS is "many"`},
		"no address":      {[]string{"returns-ignored"}, with(addresses, "ORDER_AMQP_URL", "amqp://u:secret@[::1"), "$ORDER_AMQP_URL is no address of a broker"},
		"no broker":       {[]string{"returns-ignored"}, addresses, "connect to the broker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := Main(t.Context(), tt.args, func(v string) string { return tt.env[v] }, strings.NewReader(""), &out, &out)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %s", err, tt.says)
			}
		})
	}
}

func TestParseFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Fault{
		"die at published":         {Action: "die", Point: "published"},
		"wait at selected after 3": {Action: "wait", Point: "selected", After: 3},
		"":                         {},
		"die":                      {},
		"die in published":         {},
	} {
		got, err := ParseFault(text)
		if got != want || (err != nil) != (want == Fault{}) {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
}

func nothing(string) string { return "" }

func with(env map[string]string, name, value string) map[string]string {
	env = maps.Clone(env)
	env[name] = value
	return env
}
