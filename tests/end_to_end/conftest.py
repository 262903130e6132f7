"""What several files of end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, browser


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for all tests of a file. Skip these with `needs_browser` where there is none."""
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started
