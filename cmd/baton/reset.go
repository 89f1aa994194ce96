package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"example.com/baton/internal/servers"
)

func resetCommand() *cobra.Command {
	var opts upOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Remove the data of \"baton up\"",
		Long: `Remove the databases, queues and passwords that "baton up" made, those in
.baton and those in the volumes of docker-compose.yml; --local and --docker
choose one of them. Nothing is removed while it is in use.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			removed, err := reset(cmd.Context(), opts)
			if err != nil {
				return err
			}
			return report(cmd, asJSON, struct {
				Removed []string `json:"removed"`
			}{removed}, "removed "+strings.Join(removed, " and "))
		},
	}
	cmd.Flags().BoolVar(&opts.local, "local", false, "remove what is in .baton")
	cmd.Flags().BoolVar(&opts.docker, "docker", false, "remove the volumes of docker-compose.yml")
	nameFlag(cmd, &opts.name)
	jsonFlag(cmd, &asJSON)
	cmd.MarkFlagsMutuallyExclusive("local", "docker")
	return cmd
}

func reset(ctx context.Context, opts upOptions) (removed []string, err error) {
	clone, err := servers.ClonePath(".")
	if err != nil {
		return nil, err
	}
	home, err := openData(clone, opts.name)
	if err != nil {
		return nil, err
	}
	if opts.docker {
		if err := home.Close(); err != nil {
			return nil, err
		}
	} else {
		if err := home.Remove(); err != nil {
			return nil, err
		}
		removed = append(removed, home.Path())
	}
	if opts.local {
		return removed, nil
	}
	_, err = os.Stat(filepath.Join(clone, "docker-compose.yml"))
	if err != nil || !composeAnswers(ctx) {
		if opts.docker {
			return removed, errors.New("no Docker engine with Compose answers here")
		}
		return removed, nil
	}
	running, err := exec.CommandContext(ctx, "docker", "compose", "ps", "--quiet").Output()
	if err != nil {
		return removed, fmt.Errorf("docker compose ps: %w", err)
	}
	if len(running) > 0 {
		return removed, errors.New("docker compose is running; stop it first: docker compose down")
	}
	if err := compose(ctx, "down", "--volumes"); err != nil {
		return removed, fmt.Errorf("docker compose down --volumes: %w", err)
	}
	return append(removed, "the volumes of docker compose"), nil
}
