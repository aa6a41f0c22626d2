package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/goalkeeper-dev/goalkeeper/kv/goal"
	"github.com/goalkeeper-dev/goalkeeper/notifier"
)

// oneSpan runs f with a tracer and returns the one span that it made.
func oneSpan(t *testing.T, f func(trace.Tracer)) sdktrace.ReadOnlySpan {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	f(tp.Tracer("test"))
	if len(spans.Ended()) != 1 {
		t.Fatalf("%d spans have ended", len(spans.Ended()))
	}
	return spans.Ended()[0]
}

// ended are the attributes of a span that end it, with its status.
func ended(s sdktrace.ReadOnlySpan, names ...string) string {
	out := []string{s.Status().Code.String(), s.Status().Description}
	for _, a := range s.Attributes() {
		if slices.Contains(names, string(a.Key)) {
			out = append(out, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
	}
	return strings.Join(out, " ")
}

// TestAttemptSpan: an attempt's span says how it ended, and of an error its
// kind alone.
func TestAttemptSpan(t *testing.T) {
	t.Parallel()
	acc := goal.Accepted{Submission: goal.Submission{TaskID: "tsk_1", Tenant: "acme", Traceparent: callerHeader}}
	result := func(status goal.State, reason goal.Reason) goal.Result {
		return goal.Result{Status: status, Reason: reason, Usage: goal.Usage{Steps: 3}}
	}
	for name, test := range map[string]struct {
		result goal.Result
		err    error
		want   string
	}{
		"succeeded":  {result: result(goal.Succeeded, goal.TargetStateReached), want: "Unset  goalkeeper.status=succeeded goalkeeper.reason=TARGET_STATE_REACHED goalkeeper.steps=3"},
		"cancelled":  {result: result(goal.Cancelled, goal.CancelRequested), want: "Unset  goalkeeper.status=cancelled goalkeeper.reason=CANCELLED goalkeeper.steps=3"},
		"failed":     {result: result(goal.Failed, goal.ToolFailed), want: "Error TOOL_FAILED goalkeeper.status=failed goalkeeper.reason=TOOL_FAILED goalkeeper.steps=3 error.type=TOOL_FAILED"},
		"taken over": {err: fmt.Errorf("append: %w", goal.ErrFenced), want: "Error superseded error.type=superseded"},
		"given back": {err: errors.New("secret text"), want: "Error unfinished error.type=unfinished"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := oneSpan(t, func(tr trace.Tracer) {
				_, end := traceAttempt(tr)(t.Context(), acc)
				end(test.result, test.err)
			})
			if got := ended(s, "goalkeeper.status", "goalkeeper.reason", "goalkeeper.steps", "error.type"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if s.Name() != "invoke_agent default" || s.Parent().TraceID().String() != callerTrace || s.Parent().SpanID().String() != callerSpan {
				t.Errorf("span %s below %s", s.Name(), s.Parent().SpanID())
			}
		})
	}
}

// TestWebhookSpan: every attempt is a span of its own below the submission's,
// and names of the receiver its host alone.
func TestWebhookSpan(t *testing.T) {
	t.Parallel()
	hook := goal.Webhook{URL: "https://hooks.example.com:8443/path?token=word", TaskID: "tsk_1", Tenant: "acme", Traceparent: callerHeader}
	for name, test := range map[string]struct {
		n, status int
		class     string
		want      string
	}{
		"taken":     {1, http.StatusNoContent, "", "Unset  http.request.resend_count=0 server.address=hooks.example.com http.response.status_code=204"},
		"refused":   {3, http.StatusBadGateway, notifier.Class5xx, "Error http_5xx http.request.resend_count=2 server.address=hooks.example.com http.response.status_code=502 error.type=http_5xx"},
		"no answer": {2, 0, notifier.ClassTimeout, "Error timeout http.request.resend_count=1 server.address=hooks.example.com error.type=timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told string
			s := oneSpan(t, func(tr trace.Tracer) {
				_, parent, end := traceWebhook(tr)(t.Context(), hook, test.n)
				told = parent
				end(test.status, test.class)
			})
			if got := ended(s, "http.request.resend_count", "server.address", "http.response.status_code", "error.type"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if want := "00-" + callerTrace + "-" + s.SpanContext().SpanID().String() + "-01"; told != want {
				t.Errorf("the receiver is told %s, want %s", told, want)
			}
			if s.Parent().SpanID().String() != callerSpan || s.SpanKind() != trace.SpanKindClient || s.Status().Code == codes.Ok {
				t.Errorf("span below %s, kind %s", s.Parent().SpanID(), s.SpanKind())
			}
		})
	}
}

// TestUnsampledTrace: a caller that does not sample has nothing exported, and
// its trace context goes on all the same.
func TestUnsampledTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tr := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	hook := goal.Webhook{Traceparent: "00-" + callerTrace + "-" + callerSpan + "-00"}
	_, told, end := traceWebhook(tr)(t.Context(), hook, 1)
	end(http.StatusOK, "")
	if len(spans.Ended()) != 0 || told[:36] != "00-"+callerTrace+"-" || told[52:] != "-00" {
		t.Errorf("%d spans; the receiver is told %s", len(spans.Ended()), told)
	}
}
