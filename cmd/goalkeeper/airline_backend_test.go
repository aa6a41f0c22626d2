package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// documents is what the airline backend needs of the STATE bucket.
type documents interface {
	Get(ctx context.Context, namespace, collection, id string) (json.RawMessage, uint64, error)
	Put(ctx context.Context, namespace, collection, id string, value json.RawMessage, rev uint64) (uint64, error)
}

// airline is a tool backend for the airline goals of the real-input data: an
// HTTP server at /{world}/{tool} over the project's KV state. Its writes are not
// idempotent by nature; with dedupe it honours Idempotency-Key.
type airline struct {
	docs    documents
	flights map[string]any // never written
	dedupe  bool
	// pause is slept between the effect and the answer: the time in which a
	// killed worker leaves its call in flight.
	pause func()

	mu      sync.Mutex
	answers map[string]answer // by world and key; guarded by mu
	effects int               // writes done; guarded by mu
	worlds  map[string]*sync.Mutex
}

type answer struct {
	status int
	body   []byte
}

// refusal is a tool's own error: nothing was changed.
type refusal string

// Error implements error.
func (r refusal) Error() string { return "Error: " + string(r) }

type object = map[string]any

// airlineTools are the tools, with whether they write.
var airlineTools = map[string]bool{
	"cancel_reservation": true, "update_reservation_flights": true, "update_reservation_baggages": true,
	"update_reservation_passengers": true, "book_reservation": true, "send_certificate": true,
	"get_reservation_details": false, "get_user_details": false, "search_direct_flight": false,
	"search_onestop_flight": false, "list_all_airports": false, "calculate": false, "think": false,
	"transfer_to_human_agents": false,
}

// ServeHTTP runs one tool call of one world.
func (a *airline) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	world, tool, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	lock := a.world(world)
	lock.Lock() // one call at a time in a world, as a database transaction would give
	key := world + "/" + r.Header.Get("Idempotency-Key")
	ans, known := a.recorded(key)
	if !known {
		ans = a.call(r, world, tool)
		a.record(key, ans)
	}
	lock.Unlock()
	if a.pause != nil && airlineTools[tool] {
		a.pause()
	}
	if known {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(ans.status)
	_, _ = w.Write(ans.body)
}

func (a *airline) world(name string) *sync.Mutex {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.worlds == nil {
		a.worlds, a.answers = map[string]*sync.Mutex{}, map[string]answer{}
	}
	if a.worlds[name] == nil {
		a.worlds[name] = &sync.Mutex{}
	}
	return a.worlds[name]
}

func (a *airline) recorded(key string) (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ans, ok := a.answers[key]
	return ans, ok && a.dedupe
}

func (a *airline) record(key string, ans answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[key] = ans
}

func (a *airline) call(r *http.Request, world, tool string) answer {
	args := object{}
	dec := json.NewDecoder(r.Body)
	dec.UseNumber()
	if err := dec.Decode(&args); err != nil {
		return answer{http.StatusBadRequest, []byte(`"unreadable arguments"`)}
	}
	tx := &transaction{a: a, ctx: context.WithoutCancel(r.Context()), world: world, args: args}
	out, err := tx.run(tool)
	var refused refusal
	switch {
	case errors.As(err, &refused):
		body, _ := goal.Marshal(refused.Error())
		return answer{http.StatusUnprocessableEntity, body}
	case err != nil:
		body, _ := goal.Marshal(err.Error())
		return answer{http.StatusInternalServerError, body}
	}
	if airlineTools[tool] {
		a.mu.Lock()
		a.effects++
		a.mu.Unlock()
	}
	body, err := goal.Marshal(out)
	if err != nil {
		return answer{http.StatusInternalServerError, []byte(`"unwritable answer"`)}
	}
	return answer{http.StatusOK, body}
}

// transaction is one tool call: it reads and writes entities of one world.
type transaction struct {
	a     *airline
	ctx   context.Context //nolint:containedctx // lives as long as one call
	world string
	args  object
}

func (t *transaction) run(tool string) (any, error) {
	switch tool {
	case "cancel_reservation":
		return t.cancel()
	case "update_reservation_flights":
		return t.updateFlights()
	case "update_reservation_baggages":
		return t.updateBaggages()
	case "update_reservation_passengers":
		return t.updatePassengers()
	case "book_reservation":
		return t.book()
	case "send_certificate":
		return t.sendCertificate()
	case "get_reservation_details":
		return t.get("reservations", t.str("reservation_id"))
	case "get_user_details":
		return t.get("users", t.str("user_id"))
	case "search_direct_flight":
		return t.searchDirect(), nil
	case "search_onestop_flight", "list_all_airports", "calculate", "think", "transfer_to_human_agents":
		return "ok", nil
	default:
		return nil, refusal("unknown tool " + tool)
	}
}

func (t *transaction) str(name string) string { s, _ := t.args[name].(string); return s }

func (t *transaction) get(collection, id string) (object, error) {
	raw, _, err := t.a.docs.Get(t.ctx, t.world, collection, id)
	if errors.Is(err, goal.ErrNotFound) {
		return nil, refusal(collection + " " + id + " not found")
	}
	if err != nil {
		return nil, err
	}
	v, err := goal.Decode(raw)
	if err != nil {
		return nil, err
	}
	o, ok := v.(object)
	if !ok {
		return nil, fmt.Errorf("%s %s is not an object", collection, id)
	}
	return o, nil
}

func (t *transaction) put(collection, id string, v object) error {
	_, rev, err := t.a.docs.Get(t.ctx, t.world, collection, id)
	if err != nil && !errors.Is(err, goal.ErrNotFound) {
		return err
	}
	raw, err := goal.Marshal(v)
	if err != nil {
		return err
	}
	_, err = t.a.docs.Put(t.ctx, t.world, collection, id, raw, rev)
	return err
}

// reservation reads the reservation that the arguments name, and its user.
func (t *transaction) reservation() (res, user object, err error) {
	if res, err = t.get("reservations", t.str("reservation_id")); err != nil {
		return nil, nil, err
	}
	user, err = t.get("users", res["user_id"].(string))
	return res, user, err
}

func (t *transaction) save(res, user object) error {
	if err := t.put("reservations", res["reservation_id"].(string), res); err != nil {
		return err
	}
	return t.put("users", res["user_id"].(string), user)
}

func (t *transaction) cancel() (any, error) {
	res, err := t.get("reservations", t.str("reservation_id"))
	if err != nil {
		return nil, err
	}
	history := res["payment_history"].([]any)
	refunds := make([]any, 0, len(history))
	for _, h := range history {
		p := h.(object)
		refunds = append(refunds, payment(p["payment_id"], -integer(p["amount"])))
	}
	res["payment_history"] = append(history, refunds...)
	res["status"] = "cancelled"
	return res, t.put("reservations", res["reservation_id"].(string), res)
}

func (t *transaction) updateFlights() (any, error) {
	res, user, err := t.reservation()
	if err != nil {
		return nil, err
	}
	cabin, old := t.str("cabin"), res["flights"].([]any)
	seats := int64(len(res["passengers"].([]any)))
	var flights []any
	var total int64
	for _, f := range t.args["flights"].([]any) {
		want := f.(object)
		entry := kept(old, want, cabin == res["cabin"])
		if entry == nil {
			if entry, err = t.a.seat(want, cabin, seats); err != nil {
				return nil, err
			}
		}
		total += integer(entry["price"])
		flights = append(flights, entry)
	}
	for _, f := range old {
		total -= integer(f.(object)["price"])
	}
	if err := pay(user, t.str("payment_id"), total*seats); err != nil {
		return nil, err
	}
	res["flights"] = flights
	if total != 0 {
		res["payment_history"] = append(res["payment_history"].([]any), payment(t.str("payment_id"), total*seats))
	}
	return res, t.save(res, user)
}

// kept is the old entry of the wanted flight, if the cabin stays too.
func kept(old []any, want object, sameCabin bool) object {
	for _, f := range old {
		o := f.(object)
		if sameCabin && o["flight_number"] == want["flight_number"] && o["date"] == want["date"] {
			return flight(want, o["price"], o["origin"], o["destination"])
		}
	}
	return nil
}

func flight(want object, price, origin, destination any) object {
	return object{
		"flight_number": want["flight_number"], "date": want["date"], "price": price,
		"origin": origin, "destination": destination,
	}
}

// seat finds a flight with enough seats that day.
func (a *airline) seat(want object, cabin string, seats int64) (object, error) {
	f, ok := a.flights[want["flight_number"].(string)].(object)
	if !ok {
		return nil, refusal("flight not found")
	}
	day, ok := f["dates"].(object)[want["date"].(string)].(object)
	if !ok || day["status"] != "available" {
		return nil, refusal("flight is not available that day")
	}
	if integer(day["available_seats"].(object)[cabin]) < seats {
		return nil, refusal("not enough seats")
	}
	return flight(want, day["prices"].(object)[cabin], f["origin"], f["destination"]), nil
}

func (t *transaction) updateBaggages() (any, error) {
	res, user, err := t.reservation()
	if err != nil {
		return nil, err
	}
	price := 50 * max(0, integer(t.args["nonfree_baggages"])-integer(res["nonfree_baggages"]))
	if err := pay(user, t.str("payment_id"), price); err != nil {
		return nil, err
	}
	res["total_baggages"], res["nonfree_baggages"] = t.args["total_baggages"], t.args["nonfree_baggages"]
	if price != 0 {
		res["payment_history"] = append(res["payment_history"].([]any), payment(t.str("payment_id"), price))
	}
	return res, t.save(res, user)
}

func (t *transaction) updatePassengers() (any, error) {
	res, err := t.get("reservations", t.str("reservation_id"))
	if err != nil {
		return nil, err
	}
	list := t.args["passengers"].([]any)
	if len(list) != len(res["passengers"].([]any)) {
		return nil, refusal("the number of passengers cannot change")
	}
	res["passengers"] = list
	return res, t.put("reservations", res["reservation_id"].(string), res)
}

func (t *transaction) book() (any, error) {
	user, err := t.get("users", t.str("user_id"))
	if err != nil {
		return nil, err
	}
	id, err := t.free("reservations", "HATHAT", "HATHAU", "HATHAV")
	if err != nil {
		return nil, err
	}
	passengers := t.args["passengers"].([]any)
	n, total := int64(len(passengers)), int64(0)
	var flights []any
	for _, f := range t.args["flights"].([]any) {
		entry, err := t.a.seat(f.(object), t.str("cabin"), n)
		if err != nil {
			return nil, err
		}
		total += integer(entry["price"]) * n
		flights = append(flights, entry)
	}
	if t.str("insurance") == "yes" {
		total += 30 * n
	}
	total += 50 * integer(t.args["nonfree_baggages"])
	methods := t.args["payment_methods"].([]any)
	if err := payAll(user, methods, total); err != nil {
		return nil, err
	}
	res := object{
		"reservation_id": id, "flights": flights, "passengers": passengers, "payment_history": methods,
		"created_at": "2024-05-15T15:00:00",
	}
	for _, m := range []string{
		"user_id", "origin", "destination", "flight_type", "cabin", "total_baggages", "nonfree_baggages", "insurance",
	} {
		res[m] = t.args[m]
	}
	user["reservations"] = append(user["reservations"].([]any), id)
	return res, t.save(res, user)
}

// free is the first of the ids that no entity has.
func (t *transaction) free(collection string, ids ...string) (string, error) {
	for _, id := range ids {
		_, _, err := t.a.docs.Get(t.ctx, t.world, collection, id)
		if errors.Is(err, goal.ErrNotFound) {
			return id, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", refusal("no free id")
}

func (t *transaction) sendCertificate() (any, error) {
	user, err := t.get("users", t.str("user_id"))
	if err != nil {
		return nil, err
	}
	methods := user["payment_methods"].(object)
	for _, n := range []string{"3221322", "3221323", "3221324"} {
		id := "certificate_" + n
		if _, taken := methods[id]; !taken {
			methods[id] = object{"source": "certificate", "amount": t.args["amount"], "id": id}
			return methods[id], t.put("users", t.str("user_id"), user)
		}
	}
	return nil, refusal("too many certificates")
}

func (t *transaction) searchDirect() []any {
	out := []any{}
	for _, v := range t.a.flights {
		f := v.(object)
		day, ok := f["dates"].(object)[t.str("date")].(object)
		if !ok || day["status"] != "available" || f["origin"] != t.args["origin"] || f["destination"] != t.args["destination"] {
			continue
		}
		hit := object{}
		for k, v := range f {
			if k != "dates" {
				hit[k] = v
			}
		}
		maps.Copy(hit, day)
		out = append(out, hit)
	}
	return out
}

// pay takes the amount from a user's payment method; a negative one is given
// back. Certificates cannot pay for a change.
func pay(user object, id string, amount int64) error {
	m, ok := user["payment_methods"].(object)[id].(object)
	switch {
	case !ok:
		return refusal("payment method not found")
	case m["source"] == "certificate":
		return refusal("certificates cannot be used for a change")
	case m["source"] == "gift_card" && integer(m["amount"]) < amount:
		return refusal("gift card balance is too small")
	case m["source"] == "gift_card":
		m["amount"] = number(integer(m["amount"]) - amount)
	}
	return nil
}

// payAll pays a booking with several methods, whose amounts must add up.
func payAll(user object, methods []any, total int64) error {
	have := user["payment_methods"].(object)
	var sum int64
	for _, v := range methods {
		p := v.(object)
		m, ok := have[p["payment_id"].(string)].(object)
		if !ok {
			return refusal("payment method not found")
		}
		if slices.Contains([]any{"gift_card", "certificate"}, m["source"]) && integer(m["amount"]) < integer(p["amount"]) {
			return refusal("balance is too small")
		}
		sum += integer(p["amount"])
	}
	if sum != total {
		return refusal(fmt.Sprintf("payments add up to %d, not to %d", sum, total))
	}
	for _, v := range methods {
		p := v.(object)
		id := p["payment_id"].(string)
		m := have[id].(object)
		switch m["source"] {
		case "gift_card":
			m["amount"] = number(integer(m["amount"]) - integer(p["amount"]))
		case "certificate":
			delete(have, id)
		}
	}
	return nil
}

func payment(id any, amount int64) object {
	return object{"payment_id": id, "amount": number(amount)}
}

func number(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

func integer(v any) int64 {
	n, ok := v.(json.Number)
	if !ok {
		return 0
	}
	i, err := n.Int64()
	if err != nil {
		panic(fmt.Sprintf("%s is not an integer", n))
	}
	return i
}
