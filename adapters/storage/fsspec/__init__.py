"""Any place that fsspec reaches by a URL: s3://, gs://, az://, sftp://, memory://, and many more."""

from __future__ import annotations

from hexloop.adapters.storage.fsspec.storage import FsspecStorage

__all__ = ["FsspecStorage"]
