// Package notifier tells webhook receivers how tasks ended, by the Standard
// Webhooks specification 1.0.0.
//
// It promises that every terminal batch that names a URL is sent at least once
// or is listed as dead, under one webhook-id and with the same bytes however
// often it is sent; that an attempt is never made for an outcome that was not
// settled; that one slow, dead or hostile receiver delays no other; and that no
// connection is made to an address that is not public, unless the operator
// listed it.
//
// It does not promise order, nor that a receiver sees an event only once:
// receivers dedupe by webhook-id. It keeps nothing: records and schedules are
// the store's, secrets are looked up at each attempt.
package notifier
