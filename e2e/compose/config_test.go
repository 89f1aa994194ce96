package compose

import (
	"encoding/json"
	"strings"
	"testing"
)

// config is the part of docker compose config that must be right for reasons
// that a start on a fast machine does not show.
type config struct {
	Services map[string]struct {
		Image     string
		Hostname  string
		User      string
		Restart   string
		DependsOn map[string]struct{ Condition string } `json:"depends_on"`
		Health    *struct{ Test []string }              `json:"healthcheck"`
		Ports     []struct {
			HostIP    string `json:"host_ip"`
			Published string
		}
		Volumes     []struct{ Type, Target string }
		Configs     []struct{ Source, Target string }
		Environment map[string]string
	}
	Configs map[string]struct{ Content string }
}

func readConfig(t *testing.T, files ...string) config {
	p := newProject(t)
	p.files = files
	var c config
	if err := json.Unmarshal([]byte(p.run(t, "config", "--format", "json")), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// B103, B104, B105, B106, B107: who waits for whom, where data is kept, and what
// a server starts with.
func TestConfig(t *testing.T) {
	for name, files := range map[string][]string{"one of each": {base}, "scaled": {base, scale}} {
		t.Run(name, func(t *testing.T) {
			c := readConfig(t, files...)
			for name, s := range c.Services {
				for on, d := range s.DependsOn {
					switch dependency := c.Services[on]; {
					case d.Condition == "service_completed_successfully" && dependency.Restart == "":
					case d.Condition == "service_healthy" && dependency.Health != nil:
					default:
						t.Errorf("%s starts when %s is at %s, which says nothing about it", name, on, d.Condition)
					}
				}
				if s.Image != "" && (!strings.Contains(s.Image, ":") || strings.HasSuffix(s.Image, ":latest")) {
					t.Errorf("%s: image %s may be another one tomorrow", name, s.Image)
				}
				for _, port := range s.Ports {
					if port.HostIP != "127.0.0.1" {
						t.Errorf("%s: others can reach a port: %+v", name, port)
					}
				}
				if s.Restart == "" && name != "setup" {
					t.Errorf("%s is not started again", name)
				}
			}
			// Where each server keeps its data, in a volume: from 18 on PostgreSQL's
			// image has it one folder higher, and RabbitMQ's folder carries the
			// host's name.
			for name, target := range map[string]string{"postgres": "/var/lib/postgresql", "rabbitmq": "/var/lib/rabbitmq"} {
				v := c.Services[name].Volumes
				if len(v) != 1 || v[0].Type != "volume" || v[0].Target != target {
					t.Errorf("%s: volumes %+v, want one at %s", name, v, target)
				}
			}
			rabbitmq := c.Services["rabbitmq"]
			if rabbitmq.Hostname == "" {
				t.Error("rabbitmq has another name, and so another data folder, in each container")
			}
			// Definitions that are loaded at the start keep the user of the environment
			// from being made, at the first start only. "setup" makes what is needed.
			for _, mounted := range rabbitmq.Configs {
				if content := c.Configs[mounted.Source].Content; strings.Contains(content, "definitions") || strings.Contains(mounted.Target, "definitions") {
					t.Errorf("rabbitmq loads definitions: %s at %s", content, mounted.Target)
				}
				if strings.Contains(mounted.Target, ".erlang.cookie") {
					t.Errorf("rabbitmq is given a cookie file, whose owner and mode it is particular about: %s", mounted.Target)
				}
			}
			for name := range rabbitmq.Environment {
				if strings.Contains(name, "DEFINITIONS") || strings.Contains(name, "COOKIE") {
					t.Errorf("rabbitmq is started with %s", name)
				}
			}
			for _, name := range []string{"postgres", "rabbitmq"} {
				if user := c.Services[name].User; user != "" {
					t.Errorf("%s is started as %s, who may not own its data folder", name, user)
				}
			}
		})
	}
}

// A fixed port cannot be shared by several processes.
func TestScaledPorts(t *testing.T) {
	c := readConfig(t, base, scale)
	for _, name := range []string{"order", "inventory"} {
		for _, port := range c.Services[name].Ports {
			if port.Published != "" && port.Published != "0" {
				t.Errorf("%s: host port %s for all of its processes", name, port.Published)
			}
		}
	}
}
