"""A run to look at: what is known about it from the files it wrote, and pages that show it.

The reading layer (`reading`, `history`, `journal_lines`, `series`, `results`) returns values and knows nothing of
pages. The parts of a page (`markup`, `parts`, `charts`, `timeline`) turn these values into HTML; `page` joins them to
one document.
"""
