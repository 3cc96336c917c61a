"""Import of the library, with its warnings, log lines and progress bars suppressed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

_is_quiet = ContextVar("is_quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, log lines and progress bars of the library, which repeat the results."""
    token = _is_quiet.set(True)
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        _is_quiet.reset(token)


@lru_cache(maxsize=1)
def library() -> Any:
    """Import and return ``great_expectations``, which takes seconds at the first call."""
    with quiet():
        import great_expectations
        from great_expectations.validator import validation_graph

        # Some expectations show progress bars even if the context disables them.
        draw_bar: Any = validation_graph.tqdm

        def bar_unless_quiet(*values: Any, **options: Any) -> Any:
            if _is_quiet.get():
                options["disable"] = True
            return draw_bar(*values, **options)

        validation_graph.tqdm = bar_unless_quiet
    return great_expectations


@lru_cache(maxsize=1)
def frames() -> Any:
    """Return a batch definition for data frames, in a context without files or network."""
    gx = library()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    with quiet():
        config = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        )
        context = gx.get_context(mode="ephemeral", project_config=config)
        asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
        return asset.add_batch_definition_whole_dataframe("all")
