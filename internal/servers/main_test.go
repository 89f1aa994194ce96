package servers_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"example.com/baton/internal/servers"
)

// The test program also plays the owner of servers that is killed.
func TestMain(m *testing.M) {
	if clone := os.Getenv("BATON_TEST_OWN"); clone != "" {
		if err := own(clone); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {} // until killed
	}
	os.Exit(m.Run())
}

func own(clone string) error {
	home, err := servers.OpenHome(clone, "data")
	if err != nil {
		return err
	}
	pair, err := servers.NewPair(servers.Config{Home: home})
	if err != nil {
		return err
	}
	if err := pair.Start(context.Background()); err != nil {
		return err
	}
	fmt.Print(home.Path())
	return nil
}
