"""A local web application that shows the runs of a folder while they train.

`watching` reads the runs, `pages` writes what is shown, and `service` answers requests.
"""
