"""Storage behind any URL that fsspec supports: s3://, gs://, az://, sftp://, memory://, and many more."""

from __future__ import annotations

from hexloop.adapters.storage.fsspec.storage import FsspecStorage

__all__ = ["FsspecStorage"]
