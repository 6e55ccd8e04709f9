"""Archived parts of logs: the files, their records in the metadata store, and reading them.

``ledgerlog.archive.jobs`` makes them. Nothing here imports pyarrow before a file is to be read."""
