import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { KeyError, canonical, canonicalText, toolCallHeaders, toolCallKey, toolCallKeyOfText } from "./toolcall.mjs";

const path = process.env.GOALKEEPER_KEY_VECTORS;

test("the contract's vectors", { skip: path ? false : "GOALKEEPER_KEY_VECTORS is not set" }, () => {
  for (const v of JSON.parse(readFileSync(path, "utf8"))) {
    const call = { session: v.Session, step: v.Step, tool: v.Tool };
    if (v.Name.startsWith("delimiter-collision") || v.Name === "bigint-rounds-1") {
      assert.throws(() => toolCallKeyOfText(call, v.PayloadIn), KeyError, v.Name);
      continue;
    }
    assert.equal(canonicalText(v.PayloadIn), v.Canonical, v.Name);
    assert.equal(toolCallKeyOfText(call, v.PayloadIn), v.Key, v.Name);
    assert.equal(toolCallKey(call, JSON.parse(v.PayloadIn)), v.Key, v.Name);
  }
});

test("canonical form", () => {
  const value = { b: [1, 1e21, 1e-7, -0, 0.1, 5e-324], "\u20ac": "\u000f\n\"\\/<", "\ud83d\ude00": null, "\ufb33": true, a: {} };
  assert.equal(
    canonical(value),
    '{"a":{},"b":[1,1e+21,1e-7,0,0.1,5e-324],"\u20ac":"\\u000f\\n\\"\\\\/<","\ud83d\ude00":null,"\ufb33":true}',
  );
});

test("what is refused", () => {
  const loop = {};
  loop.loop = loop;
  for (const bad of [NaN, Infinity, undefined, () => 1, 1n, "\ud800", { "\udc00": 1 }, [undefined], loop, new Array(2)]) {
    assert.throws(() => canonical(bad), KeyError);
  }
  for (const bad of [
    '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '[{"x":{"k":1,"k":2}}]', "9007199254740993", "[1e400]", "1" + "0".repeat(400),
    "", "{", "01", '"\\ud800"', "[1] 2", "[".repeat(102) + "]".repeat(102), '{"a\\q":1}', "nul",
  ]) {
    assert.throws(() => canonicalText(bad), KeyError, bad);
  }
  for (const call of [
    { session: "", step: 0, tool: "t" }, { session: "a:b", step: 0, tool: "t" }, { session: "s", step: -1, tool: "t" },
    { session: "s", step: 1.5, tool: "t" }, { session: "s", step: 0, tool: "x".repeat(129) }, { session: "s", step: 0, tool: "t\n" },
  ]) {
    assert.throws(() => toolCallKey(call, {}), KeyError);
  }
});

test("names may repeat in different objects, and be values", () => {
  assert.equal(canonicalText('{"a":{"a":["a","a",{"a":1},{"a":2}]},"b":"a"}'), '{"a":{"a":["a","a",{"a":1},{"a":2}]},"b":"a"}');
  assert.equal(canonicalText('{"k":"x:\\"{,"}'), '{"k":"x:\\"{,"}');
  assert.equal(canonicalText("9007199254740992"), "9007199254740992");
});

test("header fields", () => {
  assert.deepEqual(toolCallHeaders({ session: "s", step: 4, tool: "ping" }, {}), {
    "Idempotency-Key": toolCallKeyOfText({ session: "s", step: 4, tool: "ping" }, " { } "),
    "Goalkeeper-Session": "s",
    "Goalkeeper-Step": "4",
    "Goalkeeper-Tool": "ping",
  });
});
