"""Functions of annotations' templates, as Prometheus has them."""

from __future__ import annotations

import json
import math
import operator
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from laggard_cli.prometheus import Sample

_VERB = re.compile(r"%[-+#0 ]*\d*(?:\.\d+)?[a-zA-Z%]")
_LARGE, _SMALL = "kMGTPEZY", "munpfazy"


def fields(value: Any, path: str) -> Any:
    """Return a field of a value, such as ``.Labels.host_name`` of a sample."""
    for name in filter(None, path.split(".")):
        if isinstance(value, Sample):
            value = {"Labels": value.labels, "Value": value.value}[name]
        else:
            # A label that is not there is empty, as in Go.
            value = value.get(name, "")
    return value


def text(value: Any) -> str:
    """Return a value as a template prints it."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)


def _humanize(value: Any, *, large: bool = True) -> str:
    number, prefix = float(value), ""
    if number == 0 or not math.isfinite(number):
        return _general(number)
    if abs(number) >= 1:
        for each in _LARGE if large else "":
            if abs(number) < 1000:  # noqa: PLR2004 - the step between prefixes
                break
            prefix, number = each, number / 1000
    else:
        for each in _SMALL:
            if abs(number) >= 1:
                break
            prefix, number = each, number * 1000
    return f"{_general(number)}{prefix}"


def _humanize_1024(value: Any) -> str:
    number, prefix = float(value), ""
    for each in ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi") if math.isfinite(number) else ():
        if abs(number) < 1024:  # noqa: PLR2004 - the step between prefixes
            break
        prefix, number = each, number / 1024
    return f"{_general(number)}{prefix}"


def _general(number: float) -> str:
    return f"{number:.4g}" if math.isfinite(number) else {"inf": "+Inf", "-inf": "-Inf"}.get(str(number), "NaN")


def _humanize_duration(value: Any) -> str:
    number = float(value)
    if not math.isfinite(number):
        return _general(number)
    if number == 0:
        return "0s"
    if abs(number) < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{_humanize(number, large=False)}s"
    sign, whole = "-" if number < 0 else "", int(abs(number))
    parts = (whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60)
    first = next(index for index, part in enumerate(parts) if part)
    return sign + " ".join(f"{part}{unit}" for part, unit in list(zip(parts, "dhms", strict=True))[first:])


def _printf(form: str, *values: Any) -> str:
    left = list(values)

    def one(match: re.Match[str]) -> str:
        verb = match[0]
        if verb == "%%":
            return "%"
        value = left.pop(0)
        if verb.endswith("q"):
            return json.dumps(str(value), ensure_ascii=False)
        return text(value) if verb == "%v" else verb % value

    return _VERB.sub(one, form)


def _print(*values: Any) -> str:
    return "".join(map(text, values))


def _first(samples: list[Sample]) -> Sample:
    return samples[0]


def _value(sample: Sample) -> float:
    return sample.value


def _label(name: str, sample: Sample) -> str:
    return sample.labels.get(name, "")


def _urlquery(value: Any) -> str:
    return urllib.parse.quote_plus(text(value))


def _replaced(pattern: str, replacement: str, value: Any) -> str:
    # A replacement without groups: nothing in it has a meaning.
    return re.sub(pattern, lambda _: replacement, text(value))


def _percentage(value: Any) -> str:
    return f"{_general(100 * float(value))}%"


def _equal(one: Any, *others: Any) -> bool:
    return one in others


def _and(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "first": _first,
    "value": _value,
    "label": _label,
    "len": len,
    "printf": _printf,
    "print": _print,
    "urlquery": _urlquery,
    "reReplaceAll": _replaced,
    "humanize": _humanize,
    "humanize1024": _humanize_1024,
    "humanizeDuration": _humanize_duration,
    "humanizePercentage": _percentage,
    "eq": _equal,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "not": operator.not_,
    "and": _and,
    "or": _or,
}
