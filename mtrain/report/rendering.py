"""Pages and pictures from the package's templates, in which every text is escaped."""

from functools import cache

import jinja2

import mtrain
from mtrain.report.heatmap import CELL, LEVELS, SLANT, opacity


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
    scale = [opacity(level) for level in range(1, LEVELS + 1)]
    environment.globals.update(version=mtrain.__version__, cell=CELL, slant=SLANT, scale=scale)
    return environment
