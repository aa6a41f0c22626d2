package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/goalkeeper-dev/goalkeeper/kv"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// Limits of the embedded server.
const (
	embeddedMemory = 256 << 20 // memory streams (locks), bytes
	embeddedStore  = 1 << 40   // files, bytes: the disk itself is the limit
	recoveryTime   = 5 * time.Minute
	connectTime    = 10 * time.Second
)

// broker is the connection to the store and what makes its writes durable.
type broker struct {
	conn    *nats.Conn
	barrier *kv.GroupCommit // nil: the server's own ack is durable
	server  *server.Server  // nil: external
	opts    *server.Options // of the embedded server
	how     string          // durability in words, printed at start
}

// openBroker connects to the external servers, or starts the embedded one.
func openBroker(c *config, log *slog.Logger) (*broker, error) {
	keepHeadroom()
	if c.NATS.URL != "" {
		return connectBroker(c, log)
	}
	if err := checkNotMoved(c.Data); err != nil {
		return nil, err
	}
	return embedBroker(c, log)
}

func connectBroker(c *config, log *slog.Logger) (*broker, error) {
	opts := append(connOptions(log), nats.Timeout(connectTime))
	if c.NATS.Credentials != "" {
		opts = append(opts, nats.UserCredentials(c.NATS.Credentials))
	}
	if c.NATS.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.NATS.InboxPrefix))
	}
	nc, err := nats.Connect(c.NATS.URL, opts...)
	if err != nil {
		// The error may repeat the URL with its password.
		return nil, fmt.Errorf("connect to NATS at %s: %w", redactURLs(c.NATS.URL), unwrapURL(err))
	}
	return &broker{conn: nc, how: fmt.Sprintf("external NATS, %d replicas, the servers' sync policy", c.NATS.Replicas)}, nil
}

func embedBroker(c *config, log *slog.Logger) (*broker, error) {
	dir, err := filepath.Abs(c.Data)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	opts := &server.Options{
		ServerName: "goalkeeper", DontListen: true, NoSigs: true, DisableJetStreamBanner: true,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: embeddedMemory, JetStreamMaxStore: embeddedStore,
		JetStreamDomain: "goalkeeper", MaxPayload: 1 << 20,
		SyncAlways: c.Durability == durableAlways, SyncInterval: time.Second,
		JetStreamLimits: server.JSLimitOpts{DefaultMaxConsumers: 10_000},
	}
	if c.NATS.Listen != "" {
		host, port, err := net.SplitHostPort(c.NATS.Listen)
		if err != nil {
			return nil, fmt.Errorf("nats.listen %q: %w", c.NATS.Listen, err)
		}
		opts.DontListen, opts.Host = false, host
		if opts.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("nats.listen %q: %w", c.NATS.Listen, err)
		}
		if opts.Port == 0 {
			opts.Port = server.RANDOM_PORT
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	s.SetLoggerV2(serverLog{log.With("part", "nats")}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(recoveryTime) {
		stopServer(s)
		return nil, errors.New("embedded NATS did not become ready: see its messages above")
	}
	nc, err := nats.Connect("", append(connOptions(log), nats.InProcessServer(s))...)
	if err != nil {
		stopServer(s)
		return nil, fmt.Errorf("connect to the embedded NATS: %w", err)
	}
	b := &broker{conn: nc, server: s, opts: opts, how: "embedded NATS, one sync for every message"}
	if c.Durability == durableGroup {
		if b.barrier, err = kv.NewGroupCommit(dir); err != nil {
			b.close()
			return nil, err
		}
		spareProcessors()
		b.how = "embedded NATS, writes share file system syncs"
	}
	return b, nil
}

func connOptions(log *slog.Logger) []nats.Option {
	return []nats.Option{
		nats.Name("goalkeeper"), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("lost the connection to NATS", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("connected to NATS again") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("NATS reports", "error", err) }),
	}
}

// close ends the connection first, so that nothing is published to a server
// that is going away; then the barrier, whose waiters are gone by then.
func (b *broker) close() {
	b.conn.Close()
	if b.barrier != nil {
		_ = b.barrier.Close() // a failed sync was reported to its waiters
	}
	if b.server != nil {
		stopServer(b.server)
	}
}

// startStore starts JetStream as the server itself did with opts.
func startStore(s *server.Server, opts *server.Options) error {
	return s.EnableJetStream(&server.JetStreamConfig{
		StoreDir: opts.StoreDir, MaxMemory: opts.JetStreamMaxMemory, MaxStore: opts.JetStreamMaxStore,
		SyncAlways: opts.SyncAlways, SyncInterval: opts.SyncInterval, Domain: opts.JetStreamDomain, CompressOK: true, Strict: true,
	})
}

// stopServer shuts the embedded server down. LameDuckShutdown would do nothing
// on a server that does not listen.
func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// serverLog hands the server's messages to slog.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Noticef(f string, v ...any) { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l serverLog) Warnf(f string, v ...any)   { l.log.Warn(fmt.Sprintf(f, v...)) }
func (l serverLog) Fatalf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l serverLog) Errorf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l serverLog) Debugf(f string, v ...any)  { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l serverLog) Tracef(f string, v ...any)  { l.log.Debug(fmt.Sprintf(f, v...)) }

// unwrapURL drops the URL that net/url errors repeat.
func unwrapURL(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		return ue.Err
	}
	return err
}

// redactURLs is a comma-separated list of URLs without users and passwords.
func redactURLs(list string) string {
	urls := strings.Split(list, ",")
	for i, u := range urls {
		urls[i] = goal.RedactURL(strings.TrimSpace(u))
	}
	return strings.Join(urls, ",")
}
