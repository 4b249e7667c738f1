"""Pages from the package's templates, in which every text is escaped.

Text of a language passes through `visible`, anything else from outside through `printable`: both
spell out characters that are invisible or would reorder the text around them.
"""

from functools import cache

import jinja2

import mtrain
from mtrain.report.heatmap import CELL, LEVELS, opacity, visible
from mtrain.runtime.errors import printable


def render(template: str, **values: object) -> str:
    """Fill a template of `mtrain/report/templates`."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mtrain.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(printable=printable, visible=visible)
    scale = [opacity(level) for level in range(1, LEVELS + 1)]
    environment.globals.update(version=mtrain.__version__, cell=CELL, scale=scale)
    return environment
