"""Page kit: templates, style sheet and files of all HTML pages.

A page is a template in `templates/` that extends `page.html` and fills its blocks `header` and `main`, and `script` if
it sets `scripts = true`. All pages share `style.css`, work offline and load nothing. Values are escaped unless they are
`Markup`, which `Plot.render` and `render_fragment` return.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import jinja2
from markupsafe import Markup

from gapscope.base.environment import version
from gapscope.results.estimate import percent
from gapscope.results.formatting import format_fixed, format_number, pluralize


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Return the environment of all templates.

    Filters: `number`, `fixed`, `percent` and `count` (number and noun) format numbers, `breakable` allows line breaks
    after the dots and underscores of a name. `verbatim(name)` includes a style sheet or script of the package.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gapscope.results"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def verbatim(name: str) -> Markup:
        # style sheet and scripts are part of the package, and must not be escaped
        return Markup(environment.get_template(name).render())

    def breakable(name: str) -> Markup:
        return Markup("<wbr>").join(re.split(r"(?<=[._])", name))

    names: Any = environment
    names.globals |= {"verbatim": verbatim, "version": version()}
    names.filters |= {
        "breakable": breakable,
        "count": pluralize,
        "fixed": format_fixed,
        "number": format_number,
        "percent": percent,
    }
    return environment


def render_page(template: str, *, title: str, **content: Any) -> str:
    """Return a page as HTML.

    Args:
        template: Name of a template that extends `page.html`.
        title: Heading, and title of the window.
        content: Variables of the template; a missing one raises `jinja2.UndefinedError`.
    """
    return environment().get_template(template).render(title=title, **content)


def render_fragment(template: str, **content: Any) -> Markup:
    """Return part of a page, for notebooks and for other templates."""
    return Markup(environment().get_template(template).render(**content))
