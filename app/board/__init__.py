"""A local web application that shows the runs of a folder while they train, and commands them.

`watching` reads the runs, `pages` and `controls` write what is shown, and `service` answers requests.
"""
