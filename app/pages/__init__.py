"""Pages that show runs: a report, which is one file, and the board, a local web application that also commands them.

The reading layer (`reading`, `history`, `journal_lines`, `results`, `listing`, `watching`) returns values and knows
nothing of pages. The parts of a page (`markup`, `parts`, `charts`, `timeline`, ...) turn these values into HTML, `page`
joins them to one document, and `service` answers the requests of a browser.
"""
