package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// propagator carries W3C trace context over HTTP, NATS and the journal.
var propagator = propagation.TraceContext{}

// traceparent is the W3C header of the span in ctx, or fallback without one.
func traceparent(ctx context.Context, fallback string) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return fallback
	}
	c := propagation.MapCarrier{}
	propagator.Inject(ctx, c)
	return c["traceparent"]
}

// withTraceparent continues the trace of a stored traceparent.
func withTraceparent(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return propagator.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// openTracer exports traces to the configured collector; without one it traces
// nothing. The returned function flushes and must be called.
func openTracer(ctx context.Context, c telemetryConfig, role string, log *slog.Logger) (trace.Tracer, func(), error) {
	if c.OTLPEndpoint == "" {
		return noop.NewTracerProvider().Tracer("goalkeeper"), func() {}, nil
	}
	exp, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimRight(c.OTLPEndpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry.otlp_endpoint: %w", err)
	}
	// The library reports to one handler for the process, and by itself to
	// standard error as plain text.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("exporting traces failed", "error", unwrapURL(err)) }))
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exp),
		sdktrace.WithResource(resource.NewSchemaless(
			semconv.ServiceName("goalkeeper-"+role), semconv.ServiceVersion(version()),
		)),
	)
	return tp.Tracer("github.com/goalkeeper-dev/goalkeeper"), func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := tp.Shutdown(flush); err != nil {
			log.Warn("flushing traces failed", "error", err)
		}
	}, nil
}

// newLogger writes structured logs to standard error.
func newLogger(c logConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
