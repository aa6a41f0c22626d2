package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/goalkeeper-dev/goalkeeper/ingest"
	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
)

// The spans of a goal make one tree, over all processes:
//
//	POST /v1/tasks                     ingest; its context is stored with the submission
//	├── goalkeeper.observe             preflight
//	├── invoke_agent <environment>     worker, one per attempt
//	│   ├── goalkeeper.observe
//	│   ├── plan <environment>
//	│   └── execute_tool <tool>        the tool gets its context
//	└── POST webhook                   notifier, one per attempt; the receiver gets its context
//
// A caller's traceparent makes the first of them a child of the caller's span.
// No span holds keys, arguments, results, header values, or URLs with a path.

// traceHTTP opens a server span for every request to the API. What asks for
// health, metrics and pages is left out: it would drown the goals.
func traceHTTP(tr trace.Tracer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/") {
			next.ServeHTTP(w, r)
			return
		}
		// The router fills a route context that it finds: the pattern is known then.
		route := chi.NewRouteContext()
		ctx := context.WithValue(withTraceparent(r.Context(), r.Header.Get("Traceparent")), chi.RouteCtxKey, route)
		ctx, span := tr.Start(ctx, "HTTP", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		r = r.WithContext(ctx)
		r.Header = r.Header.Clone()
		r.Header.Set("Traceparent", traceparent(ctx, ""))
		sw := &statusRecorder{ResponseWriter: w}
		next.ServeHTTP(sw, r)
		method := knownMethod(r.Method)
		pattern := route.RoutePattern()
		span.SetName(strings.TrimSpace(method + " " + pattern))
		span.SetAttributes(attribute.String("http.request.method", method), attribute.Int("http.response.status_code", sw.status))
		if pattern != "" {
			span.SetAttributes(attribute.String("http.route", pattern))
		}
		if sw.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// knownMethod keeps made-up methods out of names.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions:
		return m
	default:
		return "_OTHER"
	}
}

// statusRecorder remembers the status that was sent.
type statusRecorder struct {
	http.ResponseWriter

	status int // 0: nothing was sent
}

// WriteHeader implements http.ResponseWriter.
func (w *statusRecorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *statusRecorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what is below.
func (w *statusRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// tracedIntake opens a span for every goal that comes over NATS.
type tracedIntake struct {
	ingest.Intake

	tracer trace.Tracer
}

// ConsumeIntake implements ingest.Intake.
func (i tracedIntake) ConsumeIntake(ctx context.Context, tenant string, take func(ctx context.Context, key []string, body []byte, at time.Time, traceparent string) time.Duration) error {
	return i.Intake.ConsumeIntake(ctx, tenant, func(ctx context.Context, key []string, body []byte, at time.Time, parent string) time.Duration {
		ctx, span := i.start(ctx, "process", goal.SubmitSubject(tenant), parent, trace.SpanKindConsumer)
		defer span.End()
		again := take(ctx, key, body, at, traceparent(ctx, parent))
		span.SetAttributes(attribute.Bool("goalkeeper.again", again > 0))
		return again
	})
}

// ServeRequests implements ingest.Intake.
func (i tracedIntake) ServeRequests(ctx context.Context, tenant string, answer func(ctx context.Context, key []string, body []byte, traceparent string) (int, map[string]string, []byte)) error {
	return i.Intake.ServeRequests(ctx, tenant, func(ctx context.Context, key []string, body []byte, parent string) (int, map[string]string, []byte) {
		ctx, span := i.start(ctx, "process", goal.RequestSubject(tenant), parent, trace.SpanKindServer)
		defer span.End()
		status, header, reply := answer(ctx, key, body, traceparent(ctx, parent))
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		return status, header, reply
	})
}

func (i tracedIntake) start(ctx context.Context, operation, subject, parent string, kind trace.SpanKind) (context.Context, trace.Span) {
	return i.tracer.Start(withTraceparent(ctx, parent), operation+" "+subject, trace.WithSpanKind(kind), trace.WithAttributes( //nolint:spancheck // the callers end it
		attribute.String("messaging.system", "nats"), attribute.String("messaging.operation.type", operation),
		attribute.String("messaging.destination.name", subject),
	))
}

// traceAttempt is worker.Config.Trace.
func traceAttempt(tr trace.Tracer) func(context.Context, goal.Accepted) (context.Context, func(goal.Result, error)) {
	return func(ctx context.Context, acc goal.Accepted) (context.Context, func(goal.Result, error)) {
		env := acc.Submission.Goal.EnvironmentName()
		ctx, span := tr.Start(withTraceparent(ctx, acc.Submission.Traceparent), "invoke_agent "+env, trace.WithAttributes(
			attribute.String("gen_ai.operation.name", "invoke_agent"), attribute.String("gen_ai.provider.name", "goalkeeper"),
			attribute.String("gen_ai.agent.name", env), attribute.String("gen_ai.conversation.id", acc.Submission.TaskID),
			attribute.String("goalkeeper.tenant", acc.Submission.Tenant),
		))
		return ctx, func(r goal.Result, err error) {
			defer span.End()
			switch {
			case errors.Is(err, goal.ErrFenced):
				failSpan(span, "superseded")
			case err != nil:
				failSpan(span, "unfinished") // the error's text may name what must not leave
			default:
				span.SetAttributes(
					attribute.String("goalkeeper.status", string(r.Status)), attribute.String("goalkeeper.reason", string(r.Reason)),
					attribute.Int("goalkeeper.steps", r.Usage.Steps),
				)
				if r.Status == goal.Failed {
					failSpan(span, string(r.Reason))
				}
			}
		}
	}
}

func failSpan(span trace.Span, kind string) {
	span.SetStatus(codes.Error, kind)
	span.SetAttributes(attribute.String("error.type", kind))
}

// traceWebhook is notifier.Config.Trace. Of the receiver's URL the host alone
// is told.
func traceWebhook(tr trace.Tracer) func(context.Context, goal.Webhook, int) (context.Context, string, func(int, string)) {
	return func(ctx context.Context, hook goal.Webhook, n int) (context.Context, string, func(int, string)) {
		ctx, span := tr.Start(withTraceparent(ctx, hook.Traceparent), "POST webhook", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("http.request.method", http.MethodPost), attribute.Int("http.request.resend_count", n-1),
			attribute.String("gen_ai.conversation.id", hook.TaskID), attribute.String("goalkeeper.tenant", hook.Tenant),
		))
		if u, err := url.Parse(hook.URL); err == nil {
			span.SetAttributes(attribute.String("server.address", u.Hostname()))
		}
		return ctx, traceparent(ctx, hook.Traceparent), func(status int, class string) {
			defer span.End()
			if status != 0 {
				span.SetAttributes(attribute.Int("http.response.status_code", status))
			}
			if class != "" {
				failSpan(span, class)
			}
		}
	}
}
