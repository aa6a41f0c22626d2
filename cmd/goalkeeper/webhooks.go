package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// secretFile holds the secret that is made at the first start, when none is
// configured and the store is embedded.
const secretFile = "webhook.secret"

func (s *service) openNotifier() error {
	secrets, err := s.cfg.signingSecrets()
	if err != nil {
		return err
	}
	guard, err := notifier.NewGuard(s.cfg.Webhooks.Allow...)
	if err != nil {
		return fmt.Errorf("webhooks.allow: %w", err)
	}
	cfg := notifier.Config{
		Ended: s.store.EndedTasks(), Due: s.store.DueTurns(), Records: deliveryStore{s.store, s.times}, Timetable: s.store,
		Secrets: func(_ context.Context, tenant string) ([]notifier.Secret, error) { return secrets[tenant], nil },
		Guard:   guard, Version: version(), Log: s.log, Registerer: s.reg,
	}
	if s.traces() {
		cfg.Trace = traceWebhook(s.tracer)
	}
	s.notifier, err = notifier.New(cfg)
	return err
}

// signingSecrets are the tenants' secrets by tenant.
func (c *config) signingSecrets() (map[string][]notifier.Secret, error) {
	out := map[string][]notifier.Secret{}
	for _, t := range c.Tenants {
		for _, h := range t.WebhookSecrets {
			out[t.Name] = append(out[t.Name], notifier.Secret{Key: string(h.Key), Until: h.Until})
		}
		if len(t.WebhookSecrets) > 0 || c.NATS.URL != "" {
			continue
		}
		key, err := generatedSecret(c.Data)
		if err != nil {
			return nil, err
		}
		out[t.Name] = []notifier.Secret{{Key: key}}
	}
	return out, nil
}

// generatedSecret reads the secret in the data folder, or makes one. Two
// processes never share the folder: the embedded store locks it.
func generatedSecret(dir string) (string, error) {
	path := filepath.Join(dir, secretFile)
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("webhook secret: %w", err)
	}
	key := notifier.NewSecret()
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("webhook secret: %w", err)
	}
	return key, nil
}

// deliveries are the webhook deliveries as ingest needs them.
type deliveries struct{ store *kv.Store }

// List implements ingest.Deliveries.
func (d deliveries) List(ctx context.Context, tenant, task string) ([]goal.DeliveryView, error) {
	list, err := d.store.Deliveries(ctx, tenant, task)
	if err != nil {
		return nil, err
	}
	views := make([]goal.DeliveryView, 0, len(list))
	for _, one := range list {
		views = append(views, one.View())
	}
	return views, nil
}

// Redeliver implements ingest.Deliveries.
func (d deliveries) Redeliver(ctx context.Context, tenant, task string) (goal.DeliveryView, error) {
	id := goal.WebhookID(tenant, task)
	if err := d.store.Redeliver(ctx, tenant, id); err != nil {
		return goal.DeliveryView{}, err
	}
	one, _, err := d.store.Delivery(ctx, tenant, id)
	if err != nil {
		return goal.DeliveryView{}, err
	}
	return one.View(), nil
}
