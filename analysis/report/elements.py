"""The page's recurring elements as HTML: sections, figures with their controls, tables, warnings."""

from collections.abc import Iterable
from html import escape
from typing import Any


def section(name: str, kicker: str, title: str, *parts: str) -> str:
    """A section under a heading that says what it shows; the kicker above says what it is."""
    over = f'<p class="kicker">{escape(kicker)}</p>' if kicker else ""
    return f'<section id="{name}">{over}<h2>{escape(unbroken(title))}</h2>{"".join(parts)}</section>'


def figure(name: str, label: str, controls: str, caption: str, command: str) -> str:
    """A figure that a script of this name draws, with its data as a download and the command that made it."""
    plot = f'<div class="plot" id="{name}" role="img" aria-label="{escape(label)}"></div>'
    download = f'<button type="button" class="download" data-figure="{name}">Download the data (CSV)</button>'
    return (
        f'<figure><div class="controls">{controls}</div>{plot}<figcaption>{caption}</figcaption>'
        f'<div class="made">{download}{copyable(command)}</div></figure>'
    )


def copyable(command: str) -> str:
    """A command with a button that copies it."""
    return (
        f'<span class="command"><code>{escape(command)}</code>'
        '<button type="button" class="copy" title="Copy the command">Copy</button></span>'
    )


def choice(figure: str, key: str, legend: str, options: dict[str, str], chosen: str) -> str:
    """Buttons of which one is pressed: `options` maps values to labels."""
    buttons = "".join(
        f'<button type="button" data-figure="{figure}" data-key="{key}" data-value="{escape(value)}" '
        f'aria-pressed="{str(value == chosen).lower()}">{escape(label)}</button>'
        for value, label in options.items()
    )
    return f'<fieldset class="choice"><legend>{legend}</legend>{buttons}</fieldset>'


def folded(summary: str, *parts: str, opened: bool = False) -> str:
    """Parts that a click on the summary (HTML) unfolds; in print they are unfolded."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{''.join(parts)}</details>"


def warnings(texts: Iterable[str]) -> str:
    """Each text as a paragraph that stands out."""
    return "".join(f'<p class="warning">{escape(_ended(text))}</p>' for text in texts)


def table(header: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """An HTML table; the cells are HTML, the first of a row is its heading. On a phone each row becomes a
    card."""
    header = list(header)
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = ""
    for row in rows:
        first, *rest = row
        cells = "".join(
            f'<td data-label="{label}">{cell}</td>' for label, cell in zip(header[1:], rest, strict=True)
        )
        body += f"<tr><th>{first}</th>{cells}</tr>"
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def tag(kind: str, text: str) -> str:
    """A word with a mark of its own, so that it can be told apart without colour."""
    return f'<span class="tag {kind}">{escape(text)}</span>'


def number(value: Any) -> str:
    """A value for people: `535.3 B`, `0.05`, `yes`, `not stated`."""
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) < 1_000_000:
        return f"{value:,}"
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g} {unit}"
    return f"{value:.4g}"


def unbroken(text: str) -> str:
    """`text` in which no line breaks before a percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
