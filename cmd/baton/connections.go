package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"example.com/baton/internal/servers"
)

// connections are where a running "up" has its servers. The addresses hold
// passwords.
type connections struct {
	// The databases, as the services.
	Order     string `json:"order"`
	Inventory string `json:"inventory"`
	// The broker, as its administrator.
	Management string `json:"management"`
	AMQP       string `json:"amqp"`
	Vhost      string `json:"vhost"`
}

// connectionsFile is where a running "up" tells the other commands where its
// servers are. It is its owner's alone.
func connectionsFile(name string) string {
	clone, err := servers.ClonePath(".")
	if err != nil {
		clone = "."
	}
	return filepath.Join(clone, ".baton", name, "connections.json")
}

func writeConnections(name string, c connections) (remove func() error, err error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	path := connectionsFile(name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	return func() error { return os.Remove(path) }, nil
}

// readConnections finds the servers of the running "up" of this name. Without
// one the error wraps fs.ErrNotExist.
func readConnections(name string) (c connections, err error) {
	data, err := os.ReadFile(connectionsFile(name))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("find the running \"baton up\": %w", err)
	}
	return c, nil
}
