"""Jobs that archive logs: copy closed ledgers to files, give up bookies' copies, merge and compact files."""
