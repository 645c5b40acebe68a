"""Renders templates to pages. All text is escaped, whatever a name or a message holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unisono.observe.pages.svg import safe

TEMPLATES = Path(__file__).parent
"""The folder of page.html, the frame with style and scripts that templates extend, and of parts.html with tiles, tables and
legends."""


def page(template: Path, **values: Any) -> str:
    """Local: renders a template, which extends page.html. All text is escaped; HTML passes through `|safe`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def escape(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(safe(value))

    folders = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(
        loader=folders, autoescape=True, finalize=escape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template.name).render(values)
