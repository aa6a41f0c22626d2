package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// benchDirect sends goals straight to NATS, as requests, over a connection of its
// own, and follows their ends in the stream of the journals.
type benchDirect struct {
	nc     *nats.Conn
	follow jetstream.ConsumeContext
	ends   sync.Map // task → chan goal.Ended
}

func openBenchDirect(ctx context.Context, url string) (*benchDirect, error) {
	nc, err := nats.Connect(url, nats.Name("goalkeeper bench"))
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	d := &benchDirect{nc: nc}
	if err := d.start(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("follow the journals: %w", err)
	}
	return d, nil
}

func (d *benchDirect) start(ctx context.Context) error {
	js, err := jetstream.New(d.nc)
	if err != nil {
		return err
	}
	consumer, err := js.OrderedConsumer(ctx, goal.EventsStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{goal.EndSubject(defaultTenant, "*")}, DeliverPolicy: jetstream.DeliverNewPolicy,
	})
	if err != nil {
		return err
	}
	d.follow, err = consumer.Consume(d.ended)
	return err
}

func (d *benchDirect) close() {
	d.follow.Stop()
	d.nc.Close()
}

// ended takes the end of a task: goals.events.<tenant>.<task>.end.
func (d *benchDirect) ended(m jetstream.Msg) {
	token := strings.Split(m.Subject(), ".")
	waits, ok := d.ends.LoadAndDelete(token[len(token)-2])
	if !ok {
		return
	}
	var b goal.Batch
	if goal.Unmarshal(m.Data(), &b) != nil || len(b.Events) == 0 || b.Events[len(b.Events)-1].Ended == nil {
		return // shows as an end that does not come
	}
	waits.(chan goal.Ended) <- *b.Events[len(b.Events)-1].Ended //nolint:forcetypeassert // the map holds nothing else; it has room for the one
}

// submit submits once, as bench.submit does.
func (d *benchDirect) submit(ctx context.Context, key string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, receiptTime)
	defer cancel()
	m := &nats.Msg{Subject: goal.RequestSubject(defaultTenant), Data: body, Header: nats.Header{"Idempotency-Key": {key}}}
	r, err := d.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if status := r.Header.Get("Status"); status != "202" {
		return fmt.Errorf("status %s: %s", status, r.Data)
	}
	return nil
}

// endToEnd submits a goal and waits for its end.
func (d *benchDirect) endToEnd(ctx context.Context, key string, body []byte) error {
	task := goal.TaskID(defaultTenant, key)
	ended := make(chan goal.Ended, 1)
	d.ends.Store(task, ended)
	defer d.ends.Delete(task)
	if err := d.submit(ctx, key, body); err != nil {
		return err
	}
	late := time.NewTimer(receiptTime)
	defer late.Stop()
	select {
	case end := <-ended:
		if end.Status != goal.Succeeded {
			return fmt.Errorf("the task ended %s", end.Reason)
		}
		return nil
	case <-late.C:
		return errors.New("the end does not come")
	}
}
