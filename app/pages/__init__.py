"""Pages that show runs: a report, which is one file, and the board, a local web application that also commands them.

The reading layer (`reading`, `history`, `journal_lines`, `information`, `system`, `results`, `progress`, `watching`)
returns values and knows nothing of pages. `overview`, `sections`, `charts`, `search` and `lines` return what sections
show, `templates` has their HTML, `page` and `board` join them to documents, and `service` answers the requests of a
browser.
"""
