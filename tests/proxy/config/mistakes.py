"""What a configuration with mistakes is told."""

import pytest

from proxy.config.settings import ConfigError, parse_config


def problems(text, **environ):
    """Each problem of a configuration that is refused, as text."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environ, "file.yaml")
    return [str(problem) for problem in caught.value.problems]


def only_problem(text, **environ):
    """The one problem it has."""
    (problem,) = problems(text, **environ)
    return problem
