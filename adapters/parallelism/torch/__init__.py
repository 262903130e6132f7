"""Answers the Parallelism port with torch's own engines."""
