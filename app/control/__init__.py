"""Commands to a live run, given through files in its folder: pause, resume, save, stop.

`files` is what both sides write and read, and `listening` is the side of the run.
"""
