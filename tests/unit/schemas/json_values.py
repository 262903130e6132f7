"""Any JSON values, for properties of readers."""

from __future__ import annotations

import math

from hypothesis import strategies as st

NUMBERS = st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400), 0.5, 1e-320, 1e300, 1e16, -0.0])

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | NUMBERS
    | st.sampled_from([math.nan, math.inf, -math.inf])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""Numbers at the ends of ranges, texts, lists and objects; NaN and infinity, which hexloop's own documents can hold."""
