"""Fuzzers of everything that hexloop reads: each parser, and whole folders through the public doors.

A target takes bytes and lets through only what is a finding: any exception, a crash of the process, more than
`processes.SECONDS` for one case, or `processes.MEMORY` bytes more than before. Cases run in child processes.

`python -m tests.fuzz` runs them; `corpus/` holds seeds, and every finding that was fixed. Files of the targets `pickle`
and `import` are pickles or contain them: they are data for hexloop's own reader, and are never unpickled.
"""
