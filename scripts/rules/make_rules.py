"""Write the rule pack from its source: ``source/NAME.yml.jinja`` beside this becomes ``rules/NAME.yml``.

    python scripts/rules/make_rules.py [--check]

What many rules say stands once, in ``said_once.jinja``, and is written ``<<name>>`` where it is said; lines that begin
with ``%%`` are Jinja's statements, those with ``%#`` its comments. What comes of it is plain YAML for Prometheus, with
the comments of the source; expressions and paragraphs are laid out in lines, however the source has them.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import jinja2
import yaml

from layout import LayoutError, laid_out

RULES = Path(__file__).resolve().parents[2] / "rules"
SOURCE = Path(__file__).with_name("source")

#: Columns of a line, with its indentation.
WIDTH = 120

#: The labels by which an alert asks for what is its own.
_OWN = {
    "run": ("cluster", "training_run"),
    "rank": ("cluster", "training_run", "training_rank"),
    "host": ("cluster", "training_run", "host_name"),
    "group": ("cluster", "training_run", "training_peer_group"),
    "gpu": ("cluster", "uuid"),
}

_SUFFIX = ".yml.jinja"
_ALONE = re.compile(r"^( +)<<(.+)>>$", re.MULTILINE)
_PARAGRAPH = re.compile(r"^( +)(\w+): >-\n((?:\1  .*\n)+)", re.MULTILINE)
_EXPRESSION = re.compile(r"^( +)expr: (?:\|\n((?:\1  .*\n)+)|(.*)\n)", re.MULTILINE)
_THRESHOLD = re.compile(r"record: laggard_threshold\n +labels: {name: (\w+)}")


class SourceError(Exception):
    """A source that cannot be written out: which one, where, and why."""


def made(source: Path = SOURCE) -> dict[str, str]:
    """Return file name to the text that its source makes.

    Raises:
        SourceError: a source says what is nowhere defined, or is no template.
    """
    paths = sorted(source.glob(f"*{_SUFFIX}"))
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _source(source, name)),
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        line_statement_prefix="%%",
        line_comment_prefix="%#",
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - it makes YAML, no HTML
    )
    names = [name for text in texts.values() for name in _THRESHOLD.findall(text)]
    known = cast("dict[str, object]", environment.globals)  # pyright: ignore[reportUnknownMemberType] - a bare dict
    known["limit"] = {name: f'scalar(max(laggard_threshold{{name="{name}"}}))' for name in names}
    known |= {"query": _query, "value": _value}
    try:
        said_once = environment.get_template("said_once.jinja").module
        for name, said in vars(said_once).items():
            # Within a paragraph a text has no lines of its own; a macro may make several lines.
            known[name] = " ".join(said.split()) if isinstance(said, str) else said
        return {name.removesuffix(".jinja"): _whole(name, environment.get_template(name).render()) for name in texts}
    except jinja2.TemplateSyntaxError as e:
        raise SourceError(f"{e.name}:{e.lineno}: {e.message}") from None
    except jinja2.UndefinedError as e:
        place = traceback.extract_tb(e.__traceback__)[-1]
        raise SourceError(f"{place.filename}:{place.lineno}: {e.message}") from None


def _query(promql: str) -> str:
    """Return what asks Prometheus in an annotation; ``{@run}`` are the labels of the alert's own run."""
    asked = re.findall("@([a-z]+)", promql)
    for name, labels in _OWN.items():
        promql = promql.replace(f"@{name}", ",".join(f"{label}=%q" for label in labels))
    told = " ".join(f"$labels.{label}" for name in asked for label in _OWN[name])
    return f'printf "{promql}" {told} | query'


def _value(promql: str, shown: str) -> str:
    """Return what puts the answer to a query into an annotation, and a question mark where there is none."""
    return f"{{{{ with {_query(promql)} -}}}} {{{{ . | first | value | {shown} }}}}{{{{ else }}}}?{{{{ end }}}}"


def _source(folder: Path, name: str) -> tuple[str, str, None]:
    """Return a source in which what stands on a line of its own brings all of its lines to that indentation."""
    text = (folder / name).read_text(encoding="utf-8")
    return _ALONE.sub(lambda found: f"{found[1]}<<({found[2]}) | indent({len(found[1])})>>", text), name, None


def _whole(name: str, text: str) -> str:
    try:
        return _filled(_laid_out(text)).lstrip("\n")
    except LayoutError as e:
        raise SourceError(f"{name}: {e}") from None


def _laid_out(text: str) -> str:
    """Return a rule file with its expressions in lines; what fits behind its key, and is plain, stands there."""

    def lines(found: re.Match[str]) -> str:
        key = f"{found[1]}expr: "
        expression = laid_out(found[2] or found[3], WIDTH - len(found[1]) - len("  "))
        if "\n" not in expression and len(key + expression) <= WIDTH and _plain(expression):
            return f"{key}{expression}\n"
        return f"{key}|\n" + textwrap.indent(expression, f"{found[1]}  ") + "\n"

    return _EXPRESSION.sub(lines, text)


def _plain(value: str) -> bool:
    """Tell whether YAML takes a value as it is, without quotes."""
    try:
        return yaml.safe_load(f"key: {value}") == {"key": value}
    except yaml.YAMLError:
        return False


def _filled(text: str) -> str:
    """Return a rule file with its folded paragraphs filled: what was said in place has its own line breaks."""

    def filled(found: re.Match[str]) -> str:
        indentation = f"{found[1]}  "
        words = " ".join(found[3].split())
        lines = textwrap.wrap(words, WIDTH - len(indentation), break_long_words=False, break_on_hyphens=False)
        return f"{found[1]}{found[2]}: >-\n" + "".join(f"{indentation}{line}\n" for line in lines)

    return _PARAGRAPH.sub(filled, text)


def differences() -> Iterator[str]:
    """Yield the lines in which the committed files differ from what their source makes."""
    texts = made()
    for path in sorted(RULES.glob("*.yml")):
        if path.name not in texts:
            yield f"{path.name} has no source: write {path.name}.jinja"
    for name, text in texts.items():
        path = RULES / name
        committed = path.read_text(encoding="utf-8") if path.exists() else ""
        yield from difflib.unified_diff(committed.splitlines(), text.splitlines(), name, f"{name}.jinja", "", "", 0, "")


def main() -> int:
    """Write the files, or tell how they differ; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the rule pack from its source.")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a file would change")
    options = parser.parse_args()
    try:
        if options.check:
            found = list(differences())
            print(*found, sep="\n", end="\n" if found else "")
            return 1 if found else 0
        for name, text in made().items():
            (RULES / name).write_text(text, encoding="utf-8")
    except SourceError as e:
        print(f"make_rules: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
