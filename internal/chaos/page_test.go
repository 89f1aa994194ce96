package chaos

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/record"
)

// docs/chaos.md says what docs/chaos.json does, and explains each kind of fault.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/chaos.md")
	if err != nil {
		t.Fatal(err)
	}
	var rep Report
	if err := record.Read("../../docs/chaos.json", &rep); err != nil {
		t.Fatal(err)
	}
	rendered, err := record.Section(page, "chaos", rep.Markdown())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(rendered), string(page)); diff != "" {
		t.Errorf("run ./baton chaos --render docs/chaos.json (-docs/chaos.json +docs/chaos.md):\n%s", diff)
	}
	if !rep.OK {
		t.Error("the run in docs/chaos.json has failed")
	}
	_, explained, _ := strings.Cut(string(page), "| fault | what is done |")
	for _, kind := range Kinds() {
		if !strings.Contains(explained, "`"+string(kind)+"`") {
			t.Errorf("docs/chaos.md does not explain %s", kind)
		}
	}
}
