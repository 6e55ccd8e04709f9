"""Archived parts of logs: the files, their records in the metadata store, and reading them.

``ledgerlog.archive.jobs`` writes the files. Importing this package does not import pyarrow: the reader
imports it when it opens a file."""
