package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCmd prints a completion script.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help says how the scripts are used.
func (*completionCmd) Help() string {
	return `bash: source <(goalkeeper completion bash)

zsh: goalkeeper completion zsh > "${fpath[1]}/_goalkeeper"

fish: goalkeeper completion fish > ~/.config/fish/completions/goalkeeper.fish`
}

// Run prints the script. It is static: made from the command line's own model,
// it calls nothing when it completes.
func (c *completionCmd) Run(t *terminal) error {
	parser, err := newParser(&cli{}, t, func(int) {})
	if err != nil {
		return err
	}
	places := completions(parser.Model.Node, nil)
	write := map[string]func(io.Writer, []completion) error{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	return write(t.out, places)
}

// completion is what may follow a path of commands.
type completion struct {
	path     []string // of commands, without the program's name
	commands []word
	flags    []flagWord
	files    bool // an argument is a file
}

type word struct{ name, help string }

type flagWord struct {
	word
	short  string
	value  bool     // a value follows
	values []string // the values there are
}

// completions walks the model.
func completions(n *kong.Node, path []string) []completion {
	c := completion{path: path}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			c.flags = append(c.flags, flagOf(f))
		}
	}
	if n.DefaultCmd != nil {
		for _, f := range n.DefaultCmd.Flags {
			c.flags = append(c.flags, flagOf(f))
		}
	}
	for _, p := range n.Positional {
		c.files = c.files || p.Name == "file" || p.Name == "payload"
		if p.Enum != "" {
			for v := range strings.SplitSeq(p.Enum, ",") {
				c.commands = append(c.commands, word{name: v})
			}
		}
	}
	list := []completion{}
	for _, child := range n.Children {
		if child.Hidden {
			continue
		}
		c.commands = append(c.commands, word{child.Name, child.Help})
		list = append(list, completions(child, append(slices.Clone(path), child.Name))...)
	}
	return append([]completion{c}, list...)
}

func flagOf(f *kong.Flag) flagWord {
	w := flagWord{word: word{"--" + f.Name, f.Help}, value: !f.IsBool()}
	if f.Short != 0 {
		w.short = "-" + string(f.Short)
	}
	if f.Enum != "" {
		w.values = strings.Split(f.Enum, ",")
	}
	return w
}

// words are the commands and flags, as one line.
func (c completion) words() string {
	var out []string
	for _, w := range c.commands {
		out = append(out, w.name)
	}
	for _, f := range c.flags {
		out = append(out, f.name)
		if f.short != "" {
			out = append(out, f.short)
		}
	}
	return strings.Join(out, " ")
}

// bashScript finds the longest known path among the words before the cursor.
func bashScript(w io.Writer, places []completion) error {
	var cases, values strings.Builder
	for _, c := range places {
		fmt.Fprintf(&cases, "    %q) words=%q ;;\n", strings.Join(c.path, " "), c.words())
	}
	for _, f := range withValues(places) {
		fmt.Fprintf(&values, "    %s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", f.names("|"), strings.Join(f.values, " "))
	}
	_, err := fmt.Fprintf(w, `# bash completion for goalkeeper
_goalkeeper_words() {
  case "$1" in
%s    *) return 1 ;;
  esac
}
_goalkeeper() {
  local cur prev path="" next word words="" i
  cur=${COMP_WORDS[COMP_CWORD]}
  prev=${COMP_WORDS[COMP_CWORD-1]}
  case "$prev" in
%s  esac
  _goalkeeper_words ""
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $word == -* ]] && continue
    next=${path:+$path }$word
    if _goalkeeper_words "$next"; then path=$next; fi
  done
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _goalkeeper goalkeeper
`, cases.String(), values.String())
	return err
}

// withValues are the flags that have a list of values, each once.
func withValues(places []completion) []flagWord {
	var out []flagWord
	seen := map[string]bool{}
	for _, c := range places {
		for _, f := range c.flags {
			if len(f.values) > 0 && !seen[f.name] {
				seen[f.name] = true
				out = append(out, f)
			}
		}
	}
	return out
}

func (f flagWord) names(sep string) string {
	if f.short == "" {
		return f.name
	}
	return f.name + sep + f.short
}

// zshScript offers commands and flags with their help.
func zshScript(w io.Writer, places []completion) error {
	var cases, values strings.Builder
	for _, c := range places {
		var lines []string
		for _, cmd := range c.commands {
			lines = append(lines, zshWord(cmd.name, cmd.help))
		}
		for _, f := range c.flags {
			lines = append(lines, zshWord(f.name, f.help))
		}
		fmt.Fprintf(&cases, "    %q) found=(\n      %s\n    ) ;;\n", strings.Join(c.path, " "), strings.Join(lines, "\n      "))
	}
	for _, f := range withValues(places) {
		fmt.Fprintf(&values, "    %s) compadd -- %s; return ;;\n", f.names("|"), strings.Join(f.values, " "))
	}
	_, err := fmt.Fprintf(w, `#compdef goalkeeper
_goalkeeper_words() {
  case "$1" in
%s    *) return 1 ;;
  esac
}
_goalkeeper() {
  local word next known=""
  local -a found
  case "${words[CURRENT-1]}" in
%s  esac
  _goalkeeper_words ""
  for word in "${(@)words[2,CURRENT-1]}"; do
    [[ $word == -* ]] && continue
    next="${known:+$known }$word"
    if _goalkeeper_words "$next"; then known=$next; fi
  done
  _describe goalkeeper found
  _files
}
if [[ $funcstack[1] == _goalkeeper ]]; then
  _goalkeeper "$@"
else
  compdef _goalkeeper goalkeeper
fi
`, cases.String(), values.String())
	return err
}

func zshWord(name, help string) string {
	return quoteShell(strings.ReplaceAll(name, ":", `\:`) + ":" + help)
}

func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// fishScript writes one line for each word.
func fishScript(w io.Writer, places []completion) error {
	var out strings.Builder
	out.WriteString("# fish completion for goalkeeper\ncomplete -c goalkeeper -f\n")
	for _, c := range places {
		when := fishCondition(c)
		if c.files {
			fmt.Fprintf(&out, "complete -c goalkeeper -n %s -F\n", when)
		}
		for _, cmd := range c.commands {
			fmt.Fprintf(&out, "complete -c goalkeeper -n %s -a %s -d %s\n", when, quoteFish(cmd.name), quoteFish(cmd.help))
		}
		for _, f := range c.flags {
			fmt.Fprintf(&out, "complete -c goalkeeper -n %s -l %s%s -d %s\n", when, strings.TrimPrefix(f.name, "--"), fishFlag(f), quoteFish(f.help))
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// fishCondition holds while the words so far name the path and no command
// below it.
func fishCondition(c completion) string {
	if len(c.path) == 0 {
		return "__fish_use_subcommand"
	}
	parts := []string{}
	for _, p := range c.path {
		parts = append(parts, "__fish_seen_subcommand_from "+p)
	}
	var below []string
	for _, cmd := range c.commands {
		below = append(below, cmd.name)
	}
	if len(below) > 0 {
		parts = append(parts, "not __fish_seen_subcommand_from "+strings.Join(below, " "))
	}
	return quoteFish(strings.Join(parts, "; and "))
}

func fishFlag(f flagWord) string {
	out := ""
	if f.short != "" {
		out += " -s " + strings.TrimPrefix(f.short, "-")
	}
	switch {
	case len(f.values) > 0:
		out += " -x -a " + quoteFish(strings.Join(f.values, " "))
	case f.value:
		out += " -r"
	}
	return out
}

func quoteFish(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
