/** A value that JSON can say. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** The payload, session, step or tool cannot give a key. */
export class KeyError extends Error {}

/** The place of one call in its session. */
export interface Call {
  /** 1 to 128 characters of A-Z a-z 0-9 . _ ~ - */
  session: string;
  /** A number of its own for every call, from 0. */
  step: number;
  /** As session. */
  tool: string;
}

/**
 * The RFC 8785 form of a value. Throws KeyError for what JSON cannot say: NaN,
 * infinities, undefined, functions, lone surrogates, cycles.
 */
export function canonical(value: Json): string;

/**
 * The RFC 8785 form of a JSON text. Also refuses duplicate names, integers that
 * a number does not hold, and nesting beyond 100.
 */
export function canonicalText(text: string): string;

/** The Idempotency-Key of a call whose arguments are a value. */
export function toolCallKey(call: Call, payload: Json): string;

/** The Idempotency-Key of a call whose arguments are a JSON text. */
export function toolCallKeyOfText(call: Call, payload: string): string;

/** The header fields of a call: the key, and what the gateway recomputes it from. */
export function toolCallHeaders(call: Call, payload: Json): Record<string, string>;
