// Idempotency keys for tool calls behind Goalkeeper. See README.md beside this folder.

import { createHash } from "node:crypto";

const MAX_DEPTH = 100;
const TOKEN = /^[A-Za-z0-9._~-]{1,128}$/;

export class KeyError extends Error {
  constructor(message) {
    super(message);
    this.name = "KeyError";
  }
}

export function canonical(value) {
  return write(value, 0);
}

function write(value, depth) {
  if (depth > MAX_DEPTH) throw new KeyError(`nested deeper than ${MAX_DEPTH}`);
  switch (typeof value) {
    case "boolean":
      return String(value);
    case "number":
      return number(value);
    case "string":
      return string(value);
    case "object":
      break;
    default:
      throw new KeyError(`JSON has no ${typeof value}`);
  }
  if (value === null) return "null";
  if (Array.isArray(value)) {
    return "[" + Array.from(value, (v) => write(v, depth + 1)).join(",") + "]";
  }
  // The default sort of strings is by UTF-16 code units, as RFC 8785 asks.
  const names = Object.keys(value).sort();
  return "{" + names.map((n) => string(n) + ":" + write(value[n], depth + 1)).join(",") + "}";
}

function number(n) {
  if (!Number.isFinite(n)) throw new KeyError("a number is not finite");
  return Object.is(n, -0) ? "0" : String(n); // RFC 8785 takes its numbers from ECMAScript
}

function string(s) {
  if (!s.isWellFormed()) throw new KeyError("a string has a lone surrogate");
  return JSON.stringify(s);
}

export function canonicalText(text) {
  check(text);
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new KeyError("not JSON");
  }
  return canonical(value);
}

// check refuses what JSON.parse would swallow: the second of two equal names,
// and integers that a number does not hold. It reads tokens only; JSON.parse
// judges the grammar.
function check(text) {
  const token = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|[{}[\],:]/gs;
  const names = []; // a Set per open object, null per open array
  let last = "";
  let pending = null;
  for (const [t] of text.matchAll(token)) {
    if (t === ":" && pending !== null && names.at(-1)) {
      if (names.at(-1).has(pending)) throw new KeyError("an object has a name twice");
      names.at(-1).add(pending);
    }
    pending = null;
    if (t === "{" || t === "[") {
      if (names.length > MAX_DEPTH) throw new KeyError(`nested deeper than ${MAX_DEPTH}`);
      names.push(t === "{" ? new Set() : null);
    } else if (t === "}" || t === "]") {
      names.pop();
    } else if (t[0] === '"' && (last === "{" || last === ",")) {
      try {
        pending = JSON.parse(t);
      } catch {
        throw new KeyError("not JSON");
      }
    } else if (/^-?\d+$/.test(t)) {
      integer(t);
    }
    last = t;
  }
}

function integer(digits) {
  const n = Number(digits);
  if (!Number.isFinite(n)) throw new KeyError("a number is not finite");
  if (BigInt(digits) !== BigInt(n)) throw new KeyError("an integer is beyond what a number holds: send it as a string");
}

function keyOf({ session, step, tool }, canonicalPayload) {
  if (typeof session !== "string" || !TOKEN.test(session)) throw new KeyError("session is not 1 to 128 of A-Za-z0-9._~-");
  if (typeof tool !== "string" || !TOKEN.test(tool)) throw new KeyError("tool is not 1 to 128 of A-Za-z0-9._~-");
  if (!Number.isSafeInteger(step) || step < 0) throw new KeyError("step is not a number from 0");
  return createHash("sha256").update(`${session}:${step}:${tool}:${canonicalPayload}`, "utf8").digest("hex");
}

export function toolCallKey(call, payload) {
  return keyOf(call, canonical(payload));
}

export function toolCallKeyOfText(call, payload) {
  return keyOf(call, canonicalText(payload));
}

export function toolCallHeaders(call, payload) {
  return {
    "Idempotency-Key": toolCallKey(call, payload),
    "Goalkeeper-Session": call.session,
    "Goalkeeper-Step": String(call.step),
    "Goalkeeper-Tool": call.tool,
  };
}
