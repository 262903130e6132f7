"""Where a run stands, as a notebook shows it: a bar, and a table that grows with every evaluation."""
