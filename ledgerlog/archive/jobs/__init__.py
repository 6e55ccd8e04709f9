"""Jobs that archive logs: copying closed ledgers to files, giving up bookies' copies, merging, compaction."""
