"""axe-core 4.14.1, which finds what keeps people from reading a page: see LICENSE beside it. It is not distributed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import Browser

_LIBRARY = Path(__file__).with_name("axe.min.js")
needs_axe = pytest.mark.skipif(not _LIBRARY.exists(), reason="source distributions do not include axe-core")
_FIND = """
const done = arguments[arguments.length - 1];
const found = result => result.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id} (${rule.impact}): ${rule.help}: ${node.target.join(' ')}: ${node.html.slice(0, 200)} ` +
    node.failureSummary.replace(/\\s+/g, ' ')));
axe.run(document, {resultTypes: ['violations']}).then(result => done(found(result)), error => done([String(error)]));
"""


def accessibility_problems(chromium: Browser) -> list[str]:
    """Return what axe finds on the open page as it is shown now, by all of its rules that are not experimental.

    Each problem is a line: the rule, how grave it is, and the element.
    """
    chromium.run(_LIBRARY.read_text(encoding="utf-8"))
    return list(chromium.run_asynchronously(_FIND))
