// Package readme holds the pages to what they say: it runs every command of
// README.md and compares tables, names and quotations with the code.
package readme

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the repository, seen from this package.
const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block is a fenced block of a page.
type block struct {
	info string // what follows the fence, such as "console"
	line int    // of the fence
	text string
}

func blocks(page string) (found []block) {
	var open *block
	for n, line := range strings.Split(page, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{info: info, line: n + 1}
		case fence:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return found
}

// step is a command with the output that the page shows for it, or, without a
// command, lines that the terminal of "./baton up" shows.
type step struct {
	line          int
	command, want string
}

// steps are the commands of a page, in order: lines with a "$ " in blocks
// "console", where output follows them, and all lines of blocks "sh". Blocks
// "text" are lines of up's terminal.
func steps(page string) (found []step) {
	for _, b := range blocks(page) {
		switch b.info {
		case "text":
			found = append(found, step{line: b.line, want: b.text})
			continue
		case "console", "sh":
		default:
			continue
		}
		continued := false
		for n, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
			command, isCommand := strings.CutPrefix(line, "$ ")
			if b.info == "sh" {
				command, isCommand = line, line != "" && line[0] != '#'
			}
			switch {
			case continued:
				found[len(found)-1].command += "\n" + line
			case isCommand:
				found = append(found, step{line: b.line + 1 + n, command: command})
			case b.info == "console":
				found[len(found)-1].want += line + "\n"
			}
			continued = (continued || isCommand) && strings.HasSuffix(line, `\`)
		}
	}
	return found
}

// rows are the cells of the table whose head has these cells, without the
// backticks.
func rows(t *testing.T, page string, head ...string) (found [][]string) {
	t.Helper()
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		if strings.Join(cells(line), "|") != strings.Join(head, "|") {
			continue
		}
		for _, line := range lines[i+2:] {
			if !strings.HasPrefix(line, "|") {
				return found
			}
			found = append(found, cells(line))
		}
		return found
	}
	t.Fatalf("no table with the columns %q", head)
	return nil
}

func cells(line string) (found []string) {
	if !strings.HasPrefix(line, "|") {
		return nil
	}
	const bar = "\x00" // a bar that is written \| is no border
	line = strings.ReplaceAll(strings.Trim(line, "|"), `\|`, bar)
	for cell := range strings.SplitSeq(line, "|") {
		found = append(found, strings.NewReplacer("`", "", bar, "|").Replace(strings.TrimSpace(cell)))
	}
	return found
}
