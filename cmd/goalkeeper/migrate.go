package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/goalkeeper-dev/goalkeeper/kv"
)

// movedFile marks a data folder whose contents live in a cluster by now: two
// stores that both go on would run every goal twice.
const movedFile = "MOVED"

type migrateCmd struct {
	common
	Data     string `env:"GOALKEEPER_DATA" type:"path" help:"Folder of the embedded store (default ./data)."`
	Replicas int    `help:"Replicas of the copies (default nats.replicas, or 3)."`
}

// Run implements the verb. The service must be stopped: it holds the folder.
func (m *migrateCmd) Run(ctx context.Context, io streams) error {
	c, err := m.load()
	if err != nil {
		return err
	}
	override(&c.Data, m.Data)
	override(&c.NATS.Replicas, m.Replicas)
	if c.NATS.URL == "" {
		return usageError("name the cluster: give --nats or nats.url")
	}
	if _, err := os.Stat(filepath.Join(c.Data, "jetstream")); err != nil {
		return usageError("no embedded store in %s", c.Data)
	}
	log := newLogger(c.Log, io.err)
	target, err := connectBroker(c, log)
	if err != nil {
		return err
	}
	defer target.close()
	source, err := embedBroker(c, log)
	if err != nil {
		return err
	}
	moved, err := kv.Migrate(ctx, source.conn, target.conn, c.NATS.Replicas, log)
	source.close()
	if err != nil {
		return err
	}
	if err := markMoved(c.Data); err != nil {
		return err
	}
	table := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STREAM\tMESSAGES\tLAST SEQUENCE")
	for _, s := range moved {
		fmt.Fprintf(table, "%s\t%d\t%d\n", s.Stream, s.Messages, s.LastSeq)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(io.err, "copied %d streams. Start the roles with --nats; %s is kept, and marked so that it is not started again.\n", len(moved), c.Data)
	if _, err := os.Stat(filepath.Join(c.Data, secretFile)); err == nil {
		fmt.Fprintf(io.err, "Webhooks were signed with the secret in %s: configure it as tenants[].webhook_secrets.\n", filepath.Join(c.Data, secretFile))
	}
	return nil
}

func markMoved(dir string) error {
	text := "The contents of this folder were copied to a cluster at " + time.Now().UTC().Format(time.RFC3339) +
		" by goalkeeper migrate.\nRemove this file only if the cluster is given up.\n"
	if err := os.WriteFile(filepath.Join(dir, movedFile), []byte(text), 0o600); err != nil {
		return fmt.Errorf("mark the data folder: %w", err)
	}
	return nil
}

// checkNotMoved refuses a folder that lives on elsewhere.
func checkNotMoved(dir string) error {
	_, err := os.Stat(filepath.Join(dir, movedFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("data folder: %w", err)
	default:
		return fmt.Errorf("the store in %s was moved to a cluster: see %s there", dir, movedFile)
	}
}
