package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

const defaultServer = "http://127.0.0.1:8080"

// remoteFlags are the flags of every verb that talks to a server.
type remoteFlags struct {
	outputFlags
	Server  string `short:"s" placeholder:"URL" group:"Server:" help:"The server (also GOALKEEPER_URL; default http://127.0.0.1:8080)."`
	Token   string `placeholder:"KEY" group:"Server:" help:"The API key (also GOALKEEPER_TOKEN, which other users of the machine cannot see)."`
	Context string `placeholder:"NAME" group:"Server:" help:"A remembered server with its key (also GOALKEEPER_CONTEXT)."`
}

// dial makes the client for the server that the flags, the environment and the
// remembered contexts name, in this order. A remembered key goes to the server
// that it was remembered for and to no other.
func (r remoteFlags) dial(t *terminal) (*client, error) {
	server, token, err := r.resolve()
	if err != nil {
		return nil, err
	}
	return newClient(server, token, t.notef)
}

func (r remoteFlags) resolve() (server, token string, err error) {
	token = cmp.Or(r.Token, os.Getenv("GOALKEEPER_TOKEN"))
	if r.Server != "" {
		return r.Server, token, nil
	}
	if r.Context == "" {
		if server = os.Getenv("GOALKEEPER_URL"); server != "" {
			return server, token, nil
		}
	}
	book, err := loadContexts()
	if err != nil {
		return "", "", err
	}
	name := cmp.Or(r.Context, os.Getenv("GOALKEEPER_CONTEXT"), book.Current)
	if name == "" {
		return defaultServer, token, nil
	}
	known, ok := book.Contexts[name]
	if !ok {
		return "", "", usageError("there is no context %q; goalkeeper context list shows those there are", name)
	}
	return known.Server, cmp.Or(r.Token, known.Token, token), nil
}

// contexts is the file of remembered servers.
type contexts struct {
	Current  string                `yaml:"current,omitempty"`
	Contexts map[string]savedPlace `yaml:"contexts"`
}

// savedPlace is a remembered server.
type savedPlace struct {
	Server string `yaml:"server"`
	Token  string `yaml:"token,omitempty"`
}

// contextsFile is GOALKEEPER_CONFIG_HOME/config.yaml, by default below the
// user's configuration folder (~/.config/goalkeeper).
func contextsFile() (string, error) {
	if dir := os.Getenv("GOALKEEPER_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "config.yaml"), nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where contexts are remembered: %w", err)
	}
	return filepath.Join(dir, "goalkeeper", "config.yaml"), nil
}

// loadContexts reads the file; where there is none, or no home, there are no
// contexts.
func loadContexts() (contexts, error) {
	book := contexts{Contexts: map[string]savedPlace{}}
	path, err := contextsFile()
	if err != nil {
		return book, nil //nolint:nilerr // nothing can be remembered, so nothing is
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return book, nil
	}
	if err != nil {
		return book, fmt.Errorf("contexts: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(raw, &book, yaml.Strict()); err != nil {
		return book, fmt.Errorf("contexts in %s: %s", path, yaml.FormatError(err, false, false))
	}
	if book.Contexts == nil {
		book.Contexts = map[string]savedPlace{}
	}
	return book, nil
}

// save replaces the file in one step; only its owner may read it.
func (c contexts) save() error {
	path, err := contextsFile()
	if err != nil {
		return err
	}
	raw, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".config-*") // mode 0600
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("contexts: %w", err), os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// contextCmd remembers servers.
type contextCmd struct {
	Add    contextAddCmd    `cmd:"" help:"Remember a server, and use it if it is the first."`
	Use    contextUseCmd    `cmd:"" help:"Make a remembered server the default."`
	List   contextListCmd   `cmd:"" help:"List the remembered servers; keys are not shown."`
	Remove contextRemoveCmd `cmd:"" help:"Forget a server."`
}

type contextAddCmd struct {
	Name       string `arg:"" help:"Name of the context."`
	Server     string `short:"s" required:"" placeholder:"URL" help:"The server."`
	Token      string `placeholder:"KEY" help:"The API key. It may be seen in the list of processes: see --token-stdin."`
	TokenStdin bool   `help:"Read the API key from stdin."`
	outputFlags
}

// Run remembers the server.
func (c *contextAddCmd) Run(t *terminal) error {
	if _, err := newClient(c.Server, "", t.notef); err != nil {
		return err
	}
	token := c.Token
	if c.TokenStdin {
		raw, err := io.ReadAll(io.LimitReader(t.in, 4096))
		if err != nil {
			return fmt.Errorf("read the key: %w", err)
		}
		token = strings.TrimSpace(string(raw))
	}
	book, err := loadContexts()
	if err != nil {
		return err
	}
	book.Contexts[c.Name] = savedPlace{Server: c.Server, Token: token}
	if book.Current == "" {
		book.Current = c.Name
	}
	if err := book.save(); err != nil {
		return err
	}
	t.notef("context %s is remembered; %s is used by default", c.Name, book.Current)
	return nil
}

type contextUseCmd struct {
	Name string `arg:"" help:"Name of the context."`
	outputFlags
}

// Run makes the context the default.
func (c *contextUseCmd) Run(t *terminal) error {
	book, err := loadContexts()
	if err != nil {
		return err
	}
	if _, ok := book.Contexts[c.Name]; !ok {
		return usageError("there is no context %q; goalkeeper context list shows those there are", c.Name)
	}
	book.Current = c.Name
	t.notef("context %s is used by default", c.Name)
	return book.save()
}

type contextRemoveCmd struct {
	Name string `arg:"" help:"Name of the context."`
	outputFlags
}

// Run forgets the context; it is no error when there is none.
func (c *contextRemoveCmd) Run() error {
	book, err := loadContexts()
	if err != nil {
		return err
	}
	delete(book.Contexts, c.Name)
	if book.Current == c.Name {
		book.Current = ""
	}
	return book.save()
}

type contextListCmd struct{ outputFlags }

// contextRow is a context as it is shown.
type contextRow struct {
	Name    string `json:"name"`
	Server  string `json:"server"`
	HasKey  bool   `json:"has_token"`
	Current bool   `json:"current"`
}

// Run lists the contexts by name.
func (*contextListCmd) Run(t *terminal) error {
	book, err := loadContexts()
	if err != nil {
		return err
	}
	list := []contextRow{}
	rows := [][]string{{"", "NAME", "SERVER", "TOKEN"}}
	for _, name := range slices.Sorted(maps.Keys(book.Contexts)) {
		place := book.Contexts[name]
		row := contextRow{Name: name, Server: place.Server, HasKey: place.Token != "", Current: name == book.Current}
		list = append(list, row)
		rows = append(rows, []string{mark(row.Current, "*"), name, place.Server, mark(row.HasKey, "yes")})
	}
	if t.machine() {
		return listOut(t, list)
	}
	return t.table(rows)
}

func mark(is bool, word string) string {
	if is {
		return word
	}
	return ""
}

// listOut prints a list as one document, or as one line for each entry.
func listOut[T any](t *terminal, list []T) error {
	if t.format == formatJSON {
		return t.document(list)
	}
	for _, v := range list {
		if err := t.line(v); err != nil {
			return err
		}
	}
	return nil
}
