package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

const pageRows = 50

// listView is the list of tasks.
type listView struct {
	Filter       filter
	Counts       []count
	Environments []string
	Rows         []Row
	Total        int // that the filter lets through
	First        int // number of the first row shown, from 1
	Older, Newer string
	Rebuilding   bool
	Empty        bool // the tenant has no task at all
}

// Last is the number of the last row shown.
func (v listView) Last() int { return v.First + len(v.Rows) - 1 }

// count is how many tasks are in a state.
type count struct {
	Status goal.State // empty: all
	N      int
	URL    string
	On     bool
}

// filter is what the list is narrowed to.
type filter struct {
	Status      goal.State
	Environment string
	Query       string
	page        int // from 0
}

func filterOf(r *http.Request) filter {
	q := r.URL.Query()
	f := filter{Status: goal.State(q.Get("status")), Environment: q.Get("environment"), Query: strings.TrimSpace(clip(q.Get("q"), 200))}
	if !slices.Contains(goal.States(), f.Status) {
		f.Status = ""
	}
	if n, err := strconv.ParseUint(q.Get("page"), 10, 16); err == nil {
		f.page = int(n)
	}
	return f
}

// url is the list with this filter.
func (f filter) url() string {
	q := url.Values{}
	for name, value := range map[string]string{"status": string(f.Status), "environment": f.Environment, "q": f.Query} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.page > 0 {
		q.Set("page", strconv.Itoa(f.page))
	}
	if len(q) == 0 {
		return "/"
	}
	return "/?" + q.Encode()
}

// Page is the page's number for the form, empty for the first.
func (f filter) Page() string {
	if f.page == 0 {
		return ""
	}
	return strconv.Itoa(f.page)
}

func (f filter) lets(r Row) bool {
	if f.Environment != "" && r.Environment != f.Environment {
		return false
	}
	if f.Query == "" {
		return true
	}
	for _, text := range []string{r.ID, r.Intent, r.Environment, string(r.Reason), r.Worker} {
		if containsFold(text, f.Query) {
			return true
		}
	}
	return false
}

func containsFold(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}

func (d *Dashboard) listPage(w http.ResponseWriter, r *http.Request) {
	who, _ := visitOf(r)
	v := d.newListView(who.Tenant, filterOf(r))
	if partial(r) {
		d.render(w, r, http.StatusOK, "list-live", v)
		return
	}
	d.page(w, r, http.StatusOK, "list", frame{Title: "Tasks", Nav: "tasks", Reload: 5, Body: v})
}

// newListView reads the list once: for the counts, the names of environments
// and the rows of one page.
func (d *Dashboard) newListView(tenant string, f filter) listView {
	v := listView{Filter: f, Empty: true, First: f.page*pageRows + 1}
	byState, environments := map[goal.State]int{}, map[string]bool{}
	whole := d.cfg.Each(tenant, func(r Row) bool {
		v.Empty = false
		environments[r.Environment] = true
		if !f.lets(r) {
			return true
		}
		byState[r.Status]++
		byState[""]++
		if f.Status != "" && r.Status != f.Status {
			return true
		}
		if v.Total++; v.Total >= v.First && len(v.Rows) < pageRows {
			v.Rows = append(v.Rows, r)
		}
		return true
	})
	v.Rebuilding = !whole
	for name := range environments {
		v.Environments = append(v.Environments, name)
	}
	if f.Environment != "" && !environments[f.Environment] {
		v.Environments = append(v.Environments, f.Environment)
	}
	slices.Sort(v.Environments)
	for _, s := range append([]goal.State{""}, goal.States()...) {
		to := f
		to.Status, to.page = s, 0
		v.Counts = append(v.Counts, count{Status: s, N: byState[s], URL: to.url(), On: s == f.Status})
	}
	v.addPages(f)
	return v
}

func (v *listView) addPages(f filter) {
	if v.Last() < v.Total && len(v.Rows) > 0 {
		older := f
		older.page++
		v.Older = older.url()
	}
	if f.page > 0 {
		newer := f
		newer.page--
		v.Newer = newer.url()
	}
}
