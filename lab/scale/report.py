"""The figures as Markdown, for a terminal and for a document, and as a picture."""

from __future__ import annotations

from lab.printing import between, growth, table
from lab.scale.fit import FEWEST_SIZES, fit
from lab.scale.measure import Result
from laggard_cli.errors import CommandError

_GIB = 2**30
#: What measured sizes are carried on to.
_EXTRAPOLATED = 100_000
#: Figures from here on are written without a fraction.
_WHOLE = 100
#: Between these lines of a document stand the figures.
_BEGIN, _END = "<!-- figures: made by python -m lab.scale --document -->", "<!-- end of figures -->"
_COLUMNS = (
    "ranks", "step", "rules", "series", "samples a second", "processors", "memory", "all groups of rules, once each",
    "longest group", "missed", "slowest scrape", "failed scrapes", "straggler named after", "hang named after",
)  # fmt: skip
_PUSHED = (
    "ranks", "server", "series", "points a second", "processors: server", "agents", "gateway",
    "memory: server", "agents", "gateway", "all groups of rules, once each", "missed", "most that waited", "refused",
    "lost", "late by", "straggler named after", "hang named after",
)  # fmt: skip
_FITTED = ("to Prometheus", "", "fixed", "each 1,000 ranks", "off by", "grows with ranks to the", "at 100,000 ranks")


def tables(results: list[Result]) -> str:
    """Return a table for each path, what broke, and what follows for more ranks, each where there is something."""
    scraped = [each for each in results if each.path == "scrape" and each.series]
    # What broke before it was measured has no figures.
    pushed = [each for each in results if each.path == "otlp" and each.series]
    parts = [
        table(_COLUMNS, [_cells(each) for each in scraped], align="r") if scraped else "",
        table(_PUSHED, [_pushed_cells(each) for each in pushed], align="r") if pushed else "",
        "\n".join(_limits(results)),
        _boards(results),
        table(_FITTED, fitted, align="r") if (fitted := _fitted(results)) else "",
    ]
    return "\n\n".join(filter(None, parts))


def _cells(result: Result) -> list[str]:
    return [
        f"{result.ranks:,}",
        f"{result.step:g} s",
        "yes" if result.rules else "no",
        f"{result.series:,.0f}",
        f"{result.samples_each_second:,.0f}",
        f"{result.processors:.2f}",
        _gib(result.resident_bytes),
        f"{result.rules_seconds:.2f} s",
        f"{result.longest_group_seconds:.2f} s",
        f"{result.missed_evaluations:.0f}",
        f"{result.slowest_scrape_seconds:.2f} s",
        f"{result.failed_scrapes:.0f}",
        _when(result, "TrainingStraggler slow"),
        _when(result, "TrainingStalled hung"),
    ]


def _pushed_cells(result: Result) -> list[str]:
    pushed = result.pushed
    agents = [name for name in result.program_bytes if name.startswith("agent-")]
    return [
        f"{result.ranks:,}",
        result.engine,
        f"{result.series:,.0f}",
        f"{pushed.get('points_each_second', 0):,.0f}",
        f"{result.processors:.2f}",
        f"{sum(result.program_processors.get(name, 0) for name in agents):.2f}",
        f"{result.program_processors.get('gateway', 0):.2f}",
        _gib(result.resident_bytes),
        f"{len(agents)} x {_gib(max((result.program_bytes[name] for name in agents), default=0))}",
        _gib(result.program_bytes.get("gateway", 0)),
        f"{result.rules_seconds:.2f} s",
        f"{result.missed_evaluations:.0f}",
        f"{pushed.get('waiting', 0):,.0f} points",
        f"{pushed.get('refused', 0):,.0f}",
        f"{pushed.get('samples_lost', 0):,.0f} of {pushed.get('samples', 0):,.0f}",
        f"{max(0.0, pushed.get('lag_seconds', 0)):.1f} s",
        _when(result, "TrainingStraggler slow"),
        _when(result, "TrainingStalled hung"),
    ]


def _boards(results: list[Result]) -> str:
    """Return how long each dashboard's queries take, a column for each size at which that was asked."""
    asked = [each for each in results if each.dashboards]
    if not asked:
        return ""
    columns = ("dashboard", *(f"{each.ranks:,} ranks, {each.engine}" for each in asked))
    boards = sorted(asked[-1].dashboards, key=lambda board: -asked[-1].dashboards[board])
    rows = [[board, *(f"{each.dashboards[board]:.2f} s" for each in asked)] for board in boards]
    return table(columns, rows, align="r")


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _when(result: Result, what: str) -> str:
    if any(each.startswith(what) for each in result.not_said):
        return "not"
    found = [seconds for name, seconds in result.alerts.items() if name.startswith(what) and seconds > 0]
    return f"{min(found):.0f} s" if found else ""


def _limits(results: list[Result]) -> list[str]:
    """Say of each path up to which size it held, and what gave way first."""
    lines: list[str] = []
    for path, engine in sorted({(each.path, each.engine) for each in results}):
        same = sorted((each for each in results if (each.path, each.engine) == (path, engine)), key=lambda r: r.ranks)
        broken = [each for each in same if not each.held]
        for each in broken[:1]:
            held = max((one.ranks for one in same if one.held and one.ranks < each.ranks), default=0)
            sign = each.broke or ("a sample was lost" if not each.not_said else "a verdict did not come")
            at = f" after {each.broke_at:.0f} s" if each.broke_at else ""
            lines.append(f"- {path} to {engine}: {held:,} ranks hold; with {each.ranks:,} {sign}{at}.")
    return lines


def _fitted(results: list[Result]) -> list[list[str]]:
    """Return what each cost is for more ranks than were measured, of each path that has three sizes."""
    rows: list[list[str]] = []
    known = [each for each in results if each.held and each.rules and each.engine == "prometheus"]
    for path, step in sorted({(each.path, each.step) for each in known}):
        sizes = {each.ranks: each for each in known if (each.path, each.step) == (path, step)}
        same = [sizes[ranks] for ranks in sorted(sizes)]
        if len(same) < FEWEST_SIZES:
            continue
        ranks = [each.ranks for each in same]
        for name, unit, values in (
            ("series", "", [each.series for each in same]),
            ("processors", "", [each.processors for each in same]),
            ("memory", " GiB", [each.resident_bytes / _GIB for each in same]),
            ("all groups of rules, once each", " s", [each.rules_seconds for each in same]),
            ("longest group", " s", [each.longest_group_seconds for each in same]),
            ("fullest group, of its interval", " %", [100 * each.fullest_group_share for each in same]),
        ):
            if min(values) <= 0:
                continue
            line = fit(ranks, values)
            figures = (line.fixed, 1000 * line.each, line.at(_EXTRAPOLATED))
            fixed, thousand, many = (f"{_figures(value)}{unit}" for value in figures)
            rows.append([path, name, fixed, thousand, f"{line.off:.0%}", f"{line.power:.2f}", many])
    return rows


def _figures(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.2g}"


def with_figures(document: str, results: list[Result]) -> str:
    """Return a document with the figures in their place. Raises :class:`ValueError` where it has none."""
    return between(document, _BEGIN, _END, tables(results))


def picture(results: list[Result]) -> str:
    """Return how processors, memory and the rules' time of a scraping server grow, on two logarithmic scales.

    Raises:
        CommandError: there are not two sizes to draw a line through.
    """
    results = [each for each in results if each.rules and each.path == "scrape" and each.processors]
    if len({each.ranks for each in results}) < 2:  # noqa: PLR2004 - a line has two ends
        raise CommandError("--picture: takes two sizes or more, by the path scrape and with rules")
    return growth(
        [each.ranks for each in results],
        {
            "processors in use": [each.processors for each in results],
            "memory, GiB": [each.resident_bytes / _GIB for each in results],
            "all groups of rules once, seconds": [each.rules_seconds for each in results],
        },
    )
