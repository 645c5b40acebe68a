"""Templates to pages: text around what a report has worked out, safe whatever a name or a message holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unisono.observe.pages.svg import safe

HERE = Path(__file__).parent
"""page.html is the frame that templates extend, with its style and what it does; parts.html has tiles, tables and legends."""


def page(template: Path, **values: Any) -> str:
    """Local: the page of a template, which extends page.html. All text is escaped; what is HTML already passes through `|safe`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(safe(value))

    folders = FileSystemLoader([template.parent, HERE])
    environment = Environment(
        loader=folders, autoescape=True, finalize=shown, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template.name).render(values)
