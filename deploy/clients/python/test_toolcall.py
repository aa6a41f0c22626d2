import json
import os
import struct
import unittest

import toolcall
from toolcall import ToolCallError, canonical, canonical_text, tool_call_headers, tool_call_key, tool_call_key_of_text

VECTORS = os.environ.get("GOALKEEPER_KEY_VECTORS")
NUMBERS = os.environ.get("GOALKEEPER_ES6_NUMBERS")  # lines "<hex of the double>,<text>"


class KeyTest(unittest.TestCase):
    @unittest.skipUnless(VECTORS, "GOALKEEPER_KEY_VECTORS is not set")
    def test_vectors(self):
        with open(VECTORS, encoding="utf-8") as f:
            vectors = json.load(f)
        for v in vectors:
            with self.subTest(v["Name"]):
                call = (v["Session"], v["Step"], v["Tool"])
                if v["Name"].startswith("delimiter-collision") or v["Name"] == "bigint-rounds-1":
                    self.assertRaises(ToolCallError, tool_call_key_of_text, *call, v["PayloadIn"])
                    continue
                self.assertEqual(canonical_text(v["PayloadIn"]), v["Canonical"])
                self.assertEqual(tool_call_key_of_text(*call, v["PayloadIn"]), v["Key"])
                self.assertEqual(tool_call_key(*call, json.loads(v["PayloadIn"])), v["Key"])

    @unittest.skipUnless(NUMBERS, "GOALKEEPER_ES6_NUMBERS is not set")
    def test_numbers(self):
        with open(NUMBERS, encoding="utf-8") as f:
            for line in f:
                bits, text = line.strip().split(",")
                (x,) = struct.unpack(">d", bytes.fromhex(bits.rjust(16, "0")))
                self.assertEqual(canonical(x), text, bits)

    def test_canonical(self):
        value = {"b": [1, 1e21, 10**21, 1e-7, -0.0, 0.1, 5e-324, 1.0, 123456789.25], "€": "\x0f\n\"\\/<\x7f", "😀": None, "\ufb33": True, "a": ()}
        self.assertEqual(
            canonical(value),
            '{"a":[],"b":[1,1e+21,1e+21,1e-7,0,0.1,5e-324,1,123456789.25],"€":"\\u000f\\n\\"\\\\/<\x7f","😀":null,"\ufb33":true}',
        )

    def test_refused(self):
        loop = []
        loop.append(loop)
        for bad in [float("nan"), float("inf"), b"x", {1: 2}, "\ud800", {"\udc00": 1}, object(), loop, 2**53 + 1, 10**400]:
            self.assertRaises(ToolCallError, canonical, bad)
        for bad in [
            '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '[{"x":{"k":1,"k":2}}]', "9007199254740993", "[1e400]", "1" + "0" * 400,
            "", "{", "01", '"\\ud800"', "[1] 2", "[" * 102 + "]" * 102, "[" * 100000, "NaN", "-Infinity", "nul",
        ]:
            with self.subTest(bad[:40]):
                self.assertRaises(ToolCallError, canonical_text, bad)
        for call in [("", 0, "t"), ("a:b", 0, "t"), ("s", -1, "t"), ("s", 1.5, "t"), ("s", True, "t"), ("s", 0, "x" * 129), ("s", 0, "t\n")]:
            self.assertRaises(ToolCallError, tool_call_key, *call, {})

    def test_headers(self):
        self.assertEqual(
            tool_call_headers("s", 4, "ping", {}),
            {
                "Idempotency-Key": tool_call_key_of_text("s", 4, "ping", " { } "),
                "Goalkeeper-Session": "s",
                "Goalkeeper-Step": "4",
                "Goalkeeper-Tool": "ping",
            },
        )

    def test_exports(self):
        for name in toolcall.__all__:
            self.assertTrue(hasattr(toolcall, name))


if __name__ == "__main__":
    unittest.main()
