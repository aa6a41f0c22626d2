package main

import (
	"context"
	"errors"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// validateCmd checks goals.
type validateCmd struct {
	Files []string `arg:"" name:"file" help:"Goals: JSON, or YAML (.yaml, .yml); - is stdin."`
	remoteFlags
}

// verdict is what validate says about a file.
type verdict struct {
	File        string        `json:"file"`
	Valid       bool          `json:"valid"`
	Fingerprint string        `json:"fingerprint,omitempty"`
	Problem     *goal.Problem `json:"problem,omitempty"`
}

// Run checks each file offline; where all are valid and a server is named, it
// checks the goals too, by a dry run.
func (c *validateCmd) Run(ctx context.Context, t *terminal) error {
	remote := c.Server != "" || c.Context != ""
	bodies := map[string][]byte{}
	var list []verdict
	var bad error
	for _, file := range c.Files {
		body, err := readGoal(file, t.in)
		if err != nil {
			return err
		}
		v := verdict{File: file}
		_, v.Fingerprint, v.Problem = goal.ParseGoal(body)
		if v.Valid = v.Problem == nil; !v.Valid {
			bad = errors.Join(bad, exit(exitUsage))
		}
		list, bodies[file] = append(list, v), body
	}
	if bad != nil || !remote {
		if err := printVerdicts(t, list); err != nil {
			return err
		}
		return bad
	}
	return c.dryRuns(ctx, t, bodies)
}

func printVerdicts(t *terminal, list []verdict) error {
	if t.machine() {
		return listOut(t, list)
	}
	for _, v := range list {
		if v.Valid {
			if err := t.printf("%s: valid, fingerprint %s\n", v.File, v.Fingerprint); err != nil {
				return err
			}
			continue
		}
		explain(t.out, v.File, v.Problem)
	}
	return nil
}

// dryRuns asks the server about each goal and returns the first refusal.
func (c *validateCmd) dryRuns(ctx context.Context, t *terminal, bodies map[string][]byte) error {
	api, err := c.dial(t)
	if err != nil {
		return err
	}
	defer api.close()
	var first error
	for _, file := range c.Files {
		if len(c.Files) > 1 {
			t.notef("%s:", file)
		}
		if err := dryRun(ctx, api, t, bodies[file]); err != nil && first == nil {
			first = err
		}
	}
	return first
}
