"""Idempotency keys for tool calls behind Goalkeeper. See README.md beside this folder.

No dependencies; Python 3.9 or later.
"""

import hashlib
import json
import math
import re
from typing import Any, Dict

__all__ = ["ToolCallError", "canonical", "canonical_text", "tool_call_key", "tool_call_key_of_text", "tool_call_headers"]

_MAX_DEPTH = 100
_EXACT = 2**53
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{1,128}\Z")


class ToolCallError(ValueError):
    """The payload, session, step or tool cannot give a key."""


def canonical(value: Any) -> str:
    """The RFC 8785 form of a value made of None, bool, int, float, str, list, tuple and dict.

    Raises ToolCallError for anything else, for floats that are not finite, lone surrogates, names that
    are not strings, integers that a double does not hold, and nesting beyond 100.
    """
    return _write(value, 0)


def _write(value: Any, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise ToolCallError(f"nested deeper than {_MAX_DEPTH}")
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_write(v, depth + 1) for v in value) + "]"
    if isinstance(value, dict):
        return _object(value, depth)
    raise ToolCallError(f"JSON has no {type(value).__name__}")


def _object(value: Dict[str, Any], depth: int) -> str:
    for name in value:
        if not isinstance(name, str):
            raise ToolCallError("a name is not a string")
        _string(name)
    # By UTF-16 code units, which differs from code points beyond the basic plane.
    names = sorted(value, key=lambda n: n.encode("utf-16-be"))
    return "{" + ",".join(_string(n) + ":" + _write(value[n], depth + 1) for n in names) + "}"


def _string(s: str) -> str:
    try:
        s.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolCallError("a string has a lone surrogate") from None
    return json.dumps(s, ensure_ascii=False)


def _integer(n: int) -> str:
    if abs(n) > _EXACT:
        try:
            exact = int(float(n)) == n
        except OverflowError:
            raise ToolCallError("a number is not finite") from None
        if not exact:
            raise ToolCallError("an integer is beyond what a double holds: send it as a string")
        return _number(float(n))
    return str(int(n))


def _number(x: float) -> str:
    """ECMAScript's Number::toString, from the shortest digits that Python's repr finds too."""
    if not math.isfinite(x):
        raise ToolCallError("a number is not finite")
    if x == 0:
        return "0"
    sign = "-" if x < 0 else ""
    mantissa, _, exponent = f"{abs(x)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    # The value is 0.<digits> * 10^point.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if 0 < point <= 21:
        if len(digits) <= point:
            return sign + digits + "0" * (point - len(digits))
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    power = point - 1
    rest = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power > 0 else '-'}{abs(power)}"


def canonical_text(text: str) -> str:
    """The RFC 8785 form of a JSON text. Also refuses duplicate names."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
    except ToolCallError:
        raise
    except (ValueError, RecursionError):
        raise ToolCallError("not JSON") from None
    return canonical(value)


def _unique(pairs: Any) -> Dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ToolCallError("an object has a name twice")
    return value


def _constant(name: str) -> Any:
    raise ToolCallError(f"JSON has no {name}")


def _key(session: str, step: int, tool: str, canonical_payload: str) -> str:
    if not isinstance(session, str) or not _TOKEN.match(session):
        raise ToolCallError("session is not 1 to 128 of A-Za-z0-9._~-")
    if not isinstance(tool, str) or not _TOKEN.match(tool):
        raise ToolCallError("tool is not 1 to 128 of A-Za-z0-9._~-")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ToolCallError("step is not a number from 0")
    preimage = f"{session}:{step}:{tool}:{canonical_payload}"
    return hashlib.sha256(preimage.encode("utf-8")).hexdigest()


def tool_call_key(session: str, step: int, tool: str, payload: Any) -> str:
    """The Idempotency-Key of a call whose arguments are a value."""
    return _key(session, step, tool, canonical(payload))


def tool_call_key_of_text(session: str, step: int, tool: str, payload: str) -> str:
    """The Idempotency-Key of a call whose arguments are a JSON text."""
    return _key(session, step, tool, canonical_text(payload))


def tool_call_headers(session: str, step: int, tool: str, payload: Any) -> Dict[str, str]:
    """The header fields of a call: the key, and what the gateway recomputes it from."""
    return {
        "Idempotency-Key": tool_call_key(session, step, tool, payload),
        "Goalkeeper-Session": session,
        "Goalkeeper-Step": str(step),
        "Goalkeeper-Tool": tool,
    }
